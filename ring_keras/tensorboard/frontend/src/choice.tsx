import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";

interface ChoiceProps {
  label: string;
  value: string | number;
  choose: (value: string) => void;
  /** Options. */
  children: ComponentChildren;
}

/** A list to choose from, with its label. */
export function Choice({ label, value, choose, children }: ChoiceProps) {
  const id = useId();
  return (
    <span>
      <label for={id}>{label}</label>{" "}
      <select id={id} value={value} onChange={(event) => choose(event.currentTarget.value)}>
        {children}
      </select>
    </span>
  );
}
