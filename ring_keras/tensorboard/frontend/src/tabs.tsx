import type { ComponentChildren } from "preact";
import { useRef } from "preact/hooks";

interface TabsProps<Name extends string> {
  names: readonly Name[];
  chosen: Name;
  choose: (name: Name) => void;
  children: ComponentChildren;
}

/** Tabs as the ARIA practices have them: arrows move, one of them is in the tab order. */
export function Tabs<Name extends string>({ names, chosen, choose, children }: TabsProps<Name>) {
  const list = useRef<HTMLDivElement>(null);
  const move = (event: KeyboardEvent) => {
    const index = names.indexOf(chosen);
    const next = {
      ArrowRight: (index + 1) % names.length,
      ArrowLeft: (index + names.length - 1) % names.length,
      Home: 0,
      End: names.length - 1,
    }[event.key];
    const name = next === undefined ? undefined : names[next];
    if (next === undefined || name === undefined) return;
    event.preventDefault();
    choose(name);
    list.current?.querySelectorAll("button")[next]?.focus();
  };
  return (
    <>
      <div role="tablist" aria-label="Views" ref={list} onKeyDown={move}>
        {names.map((name) => (
          <button
            type="button"
            role="tab"
            id={`tab-${name}`}
            aria-selected={name === chosen}
            aria-controls="panel"
            tabIndex={name === chosen ? 0 : -1}
            onClick={() => choose(name)}
          >
            {name}
          </button>
        ))}
      </div>
      <section role="tabpanel" id="panel" aria-labelledby={`tab-${chosen}`} tabIndex={0}>
        {children}
      </section>
    </>
  );
}
