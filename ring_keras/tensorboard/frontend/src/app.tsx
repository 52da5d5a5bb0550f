import { useEffect, useState } from "preact/hooks";
import * as api from "./api";
import { ThemeContext } from "./chart";
import { Choice } from "./choice";
import { integer } from "./format";
import { CollectivesPage } from "./pages/collectives";
import { EventsPage } from "./pages/events";
import { OverviewPage } from "./pages/overview";
import { RanksPage } from "./pages/ranks";
import { StepPage } from "./pages/step";
import { StragglersPage } from "./pages/stragglers";
import { Tabs } from "./tabs";
import { useTheme } from "./theme";

const TABS = ["Overview", "Ranks", "Stragglers", "Collectives", "Step", "Events"] as const;
type Tab = (typeof TABS)[number];

// TensorBoard reads its files about as often. A server that takes long is asked less:
// of its time at most the tenth part is for this page.
const RELOAD_MS = 5000;
const RELOAD_TIMES = 10;

export function App() {
  const theme = useTheme();
  const [tab, setTab] = useState<Tab>("Overview");
  const { runs, run, setRun, overview, failure } = useRun();
  const first = overview?.stragglers[0];
  return (
    <ThemeContext.Provider value={theme}>
      <header>
        <h1>Ring</h1>
        {runs.length > 0 && (
          <Choice label="Run" value={run ?? ""} choose={setRun}>
            {runs.map((name) => (
              <option value={name}>{name}</option>
            ))}
          </Choice>
        )}
        {overview && (
          <span class="facts">
            {integer(overview.by_rank.length)} {overview.by_rank.length === 1 ? "rank" : "ranks"}, step{" "}
            {integer(latestStep(overview))}
          </span>
        )}
      </header>
      <main>
        <p class="headline" role="status">
          {/* Read aloud when its text changes, not whenever it is read again. */}
          {overview?.headline ?? (failure ? "" : "Reading the run …")}
        </p>
        {first && first.pattern !== "past" && (
          <p class="remedy">
            The costs are means of {first.lost_in}. {first.remedy}
          </p>
        )}
        {failure && <p role="alert">TensorBoard does not answer: {failure}</p>}
        {run !== null && overview && (
          <Tabs names={TABS} chosen={tab} choose={setTab}>
            <Page key={run} tab={tab} run={run} overview={overview} />
          </Tabs>
        )}
      </main>
    </ThemeContext.Provider>
  );
}

/** Neighbouring updates are written together, so a step may have been written before them. */
const latestStep = ({ means, steps }: api.Overview) =>
  Math.max(means.steps.at(-1) ?? 0, steps.at(-1) ?? 0);

interface PageProps {
  tab: Tab;
  run: string;
  overview: api.Overview;
}

function Page({ tab, run, overview }: PageProps) {
  switch (tab) {
    case "Overview":
      return <OverviewPage overview={overview} />;
    case "Ranks":
      return <RanksPage run={run} overview={overview} />;
    case "Stragglers":
      return <StragglersPage overview={overview} />;
    case "Collectives":
      return <CollectivesPage overview={overview} />;
    case "Step":
      return <StepPage run={run} overview={overview} />;
    case "Events":
      return <EventsPage overview={overview} />;
  }
}

/** The chosen run, read again while somebody looks; the first one until one is chosen. */
function useRun() {
  const [runs, setRuns] = useState<string[]>([]);
  const [run, setRun] = useState<string | null>(null);
  const [read, setRead] = useState<{ run: string; overview: api.Overview } | null>(null);
  const [failure, setFailure] = useState("");
  useEffect(() => {
    let current = true;
    let timer = 0;
    const reload = async () => {
      const began = performance.now();
      try {
        if (!document.hidden) {
          const found = await api.runs();
          // It stays the same when another comes first by its name.
          const wanted = run !== null && found.includes(run) ? run : (found[0] ?? null);
          const overview = wanted === null ? null : await api.overview(wanted);
          if (!current) return;
          setRuns(found);
          setRun(wanted);
          setRead(wanted === null || overview === null ? null : { run: wanted, overview });
          setFailure("");
        }
      } catch (error) {
        if (current) setFailure(String(error));
      }
      // After the answer, so that a slow server is not asked twice at a time.
      const took = performance.now() - began;
      if (current) timer = window.setTimeout(reload, Math.max(RELOAD_MS, RELOAD_TIMES * took));
    };
    void reload();
    return () => {
      current = false;
      window.clearTimeout(timer);
    };
  }, [run]);
  // Another one's numbers do not stand under this one's name while it is read.
  return { runs, run, setRun, overview: read?.run === run ? read.overview : null, failure };
}
