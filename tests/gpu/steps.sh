# Sourced by what runs on a GPU: steps with a time limit each, and their report.
# `report`, `reports`, `time_limit` are set by who sources it; `failed` names what failed.

failed=()

say() { echo "$*" | tee -a "$report"; }

# step NAME SECONDS COMMAND...: runs it, for so long at most, and says how it went.
step() {
  local name=$1 limit=$2 log=$reports/$1.log start=$SECONDS verdict=passed status=0
  shift 2
  if ((limit > time_limit - start)); then limit=$((time_limit - start)); fi
  if ((limit > 0)); then
    # pytest says then what has failed so far.
    timeout --signal=INT --kill-after=10 "$limit" "$@" >"$log" 2>&1
    status=$?
  else
    echo "no time was left" >"$log"
    status=124
  fi
  if ((status != 0)); then
    verdict="**failed** (exit code $status)"
    failed+=("$name")
    tail -n 40 "$log" >&2
  fi
  say "| $name | $verdict | $((SECONDS - start)) | $(grep -v '^ *$' "$log" | tail -n 1 | tr '|' '/') |"
  return $status
}

# begin_report TITLE
begin_report() {
  mkdir -p "$reports"
  : >"$report"
  say "# $1"
  say
  say "$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader | head -n 1);" \
    "$("$python" --version), $(nproc) cores, Linux $(uname -r);" \
    "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  say
  say "| step | result | s | last line |"
  say "|---|---|---|---|"
}

# The ends of what failed; 1 if anything has.
end_report() {
  local name
  for name in ${failed[@]+"${failed[@]}"}; do
    printf '\n## The end of %s\n\n```text\n%s\n```\n' "$name" "$(tail -n 60 "$reports/$name.log")" |
      tee -a "$report"
  done
  return $((${#failed[@]} > 0))
}
