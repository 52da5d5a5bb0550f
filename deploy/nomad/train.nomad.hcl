# Two allocations as two hosts of one job. First, once:
#   nomad var put nomad/jobs/digits token="$(openssl rand -hex 32)"
variable "image" {
  type    = string
  default = "registry.example.org/train:1"
}

job "digits" {
  type = "batch"

  group "ranks" {
    count = 2

    # All end together, and begin anew together.
    restart {
      attempts = 0
      mode     = "fail"
    }
    reschedule {
      attempts  = 3
      interval  = "24h"
      delay     = "30s"
      unlimited = false
    }

    network {
      mode = "host"
      port "rendezvous" {}
    }

    # By its number, so that the others find the first.
    service {
      name     = "digits-${NOMAD_ALLOC_INDEX}"
      port     = "rendezvous"
      provider = "nomad"
    }

    task "ranks" {
      driver = "docker"
      user   = "1000:1000"

      config {
        image           = var.image
        network_mode    = "host"
        readonly_rootfs = true
        cap_drop        = ["all"]
        security_opt    = ["no-new-privileges"]
        shm_size        = 1073741824
        command         = "/bin/sh"
        args            = ["${NOMAD_TASK_DIR}/start.sh"]
      }

      env {
        HOME   = "${NOMAD_ALLOC_DIR}/tmp"
        TMPDIR = "${NOMAD_ALLOC_DIR}/tmp"
      }

      resources {
        cpu    = 4000
        memory = 8192
      }

      template {
        data        = "{{ with nomadVar \"nomad/jobs/digits\" }}{{ .token }}{{ end }}"
        destination = "secrets/token"
        perms       = "0400"
        uid         = 1000
        gid         = 1000
        change_mode = "noop"
      }

      template {
        data        = "{{ range nomadService \"digits-0\" }}{{ .Address }}:{{ .Port }}{{ end }}"
        destination = "local/rendezvous"
        change_mode = "noop"
      }

      template {
        data        = <<EOF
# Where the first allocation listens: its own address, or what its service says.
set -eu
# shellcheck disable=SC2154  # Nomad sets it.
rendezvous=$NOMAD_ADDR_rendezvous
if [ "$NOMAD_ALLOC_INDEX" != 0 ]; then
  tries=0
  until rendezvous=$(cat "$NOMAD_TASK_DIR/rendezvous") && [ -n "$rendezvous" ]; do
    tries=$((tries + 1))
    if [ "$tries" -ge 600 ]; then
      echo "nobody says where allocation 0 is" >&2
      exit 1
    fi
    sleep 1
  done
fi
exec ringrun --nnodes 2 --node-rank "$NOMAD_ALLOC_INDEX" --nproc-per-node 2 \
  --rendezvous "$rendezvous" --secret-file "$NOMAD_SECRETS_DIR/token" \
  --start-timeout 600 python train.py
EOF
        destination = "local/start.sh"
        perms       = "0444"
      }
    }
  }
}
