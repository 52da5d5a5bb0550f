import { render as renderInto } from "preact";
import { App } from "./app";

/** TensorBoard's frame calls this. */
export function render(): void {
  document.documentElement.lang = "en";
  document.title = "Ring";
  const style = document.createElement("link");
  style.rel = "stylesheet";
  style.href = "./index.css";
  document.head.append(style);
  renderInto(<App />, document.body);
}
