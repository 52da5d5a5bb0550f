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

// TensorBoard reads its files about as often.
const RELOAD_MS = 5000;

export function App() {
  const theme = useTheme();
  const [tab, setTab] = useState<Tab>("Overview");
  const { runs, run, setRun, overview, failure } = useRun();
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
            {integer(overview.means.steps.at(-1) ?? 0)}
          </span>
        )}
      </header>
      <main>
        <p class="headline" role="status">
          {overview?.headline ?? (failure ? "" : "Reading the run …")}
        </p>
        {failure && <p role="alert">TensorBoard does not answer: {failure}</p>}
        {run !== null && overview && (
          <Tabs names={TABS} chosen={tab} choose={setTab}>
            <Page tab={tab} run={run} overview={overview} />
          </Tabs>
        )}
      </main>
    </ThemeContext.Provider>
  );
}

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

/** The chosen run, read again while somebody looks. */
function useRun() {
  const [runs, setRuns] = useState<string[]>([]);
  const [chosen, setRun] = useState<string | null>(null);
  const [overview, setOverview] = useState<api.Overview | null>(null);
  const [failure, setFailure] = useState("");
  const run = chosen ?? runs[0] ?? null;
  useEffect(() => {
    let current = true;
    let timer = 0;
    const read = async () => {
      try {
        if (!document.hidden) {
          const found = await api.runs();
          const wanted = chosen ?? found[0];
          const content = wanted === undefined ? null : await api.overview(wanted);
          if (!current) return;
          setRuns(found);
          setOverview(content);
          setFailure("");
        }
      } catch (error) {
        if (current) setFailure(String(error));
      }
      // After the answer, so that a slow server is not asked twice at a time.
      if (current) timer = window.setTimeout(read, RELOAD_MS);
    };
    void read();
    return () => {
      current = false;
      window.clearTimeout(timer);
    };
  }, [chosen]);
  return { runs, run, setRun, overview, failure };
}
