import { useEffect, useState } from "preact/hooks";

// Okabe and Ito's colours, which people with any colour vision can tell apart.
export const COLORS = {
  compute: "#0072b2",
  input: "#e69f00",
  wait: "#d55e00",
  exposed: "#cc79a7",
  other: "#56b4e9",
  good: "#009e73",
} as const;

export interface Theme {
  dark: boolean;
  text: string;
  grid: string;
  paper: string;
}

const LIGHT: Theme = { dark: false, text: "#212121", grid: "#e0e0e0", paper: "#ffffff" };
const DARK: Theme = { dark: true, text: "#f0f0f0", grid: "#555555", paper: "#303030" };

// TensorBoard marks its own body, and this page lives in a frame of it.
function hostBody(): HTMLElement | null {
  return window.parent === window ? null : window.parent.document.body;
}

const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");

function isDark(): boolean {
  return hostBody()?.classList.contains("dark-mode") ?? prefersDark.matches;
}

export function useTheme(): Theme {
  const [dark, setDark] = useState(isDark());
  useEffect(() => {
    const update = () => setDark(isDark());
    prefersDark.addEventListener("change", update);
    const body = hostBody();
    const observer = new MutationObserver(update);
    if (body) observer.observe(body, { attributeFilter: ["class"] });
    return () => {
      prefersDark.removeEventListener("change", update);
      observer.disconnect();
    };
  }, []);
  useEffect(() => {
    document.documentElement.classList.toggle("dark", dark);
  }, [dark]);
  return dark ? DARK : LIGHT;
}
