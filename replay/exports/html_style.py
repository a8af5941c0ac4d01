"""How the page looks. Colours are variables, so that light and dark are two lists of them."""

from __future__ import annotations

from collections.abc import Mapping

LIGHT: Mapping[str, str] = {
    "page": "#ffffff", "panel": "#f6f7f9", "line": "#d5d9df", "text": "#1c2128",
    "muted": "#57606a", "bad": "#b3261e", "bad-panel": "#fdecea", "warn": "#8a5300",
    "warn-panel": "#fff4e0", "good": "#1a6e34", "good-panel": "#e6f5ea", "note": "#0b5cad",
    "note-panel": "#e7f1fc", "waiting": "#8c959f", "prefill": "#0b6bcb", "decode": "#3f9a57",
    "preempted": "#c76b00", "held": "#5b8def", "cached": "#c3cbd6",
    "owner0": "#cfe8fc", "owner1": "#f6d5ee", "owner2": "#fbe7a1", "owner3": "#d9d5fb",
    "owner4": "#cdeed3", "owner5": "#bfeeee", "owner6": "#fcd9c9",
}  # fmt: skip
DARK: Mapping[str, str] = {
    "page": "#0f1318", "panel": "#181d24", "line": "#363e49", "text": "#e4e9ef",
    "muted": "#9da7b3", "bad": "#ff9d94", "bad-panel": "#3a1a1a", "warn": "#f2bb6b",
    "warn-panel": "#33260f", "good": "#7ed29a", "good-panel": "#12301c", "note": "#8fc4ff",
    "note-panel": "#13283f", "waiting": "#7d8793", "prefill": "#4d9df5", "decode": "#4caf6d",
    "preempted": "#e8923a", "held": "#5b8def", "cached": "#465160",
    "owner0": "#174563", "owner1": "#5a2450", "owner2": "#574309", "owner3": "#3b3680",
    "owner4": "#1c5029", "owner5": "#11504f", "owner6": "#663119",
}  # fmt: skip
OWNERS = 7

_RULES = """
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.5rem 4rem; max-width: 76rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
h1, h2, h3 { line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
h3 { font-size: 1.05rem; }
p { margin: .25rem 0 .75rem; max-width: 70ch; }
code, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .875em; }
pre { margin: .5rem 0; padding: .6rem .8rem; color: var(--text); background: var(--panel);
  border: 1px solid var(--line); border-radius: 6px; overflow-x: auto; white-space: pre-wrap; }
a { color: var(--note); }
.muted { color: var(--muted); } .small { font-size: .875rem; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%);
  white-space: nowrap; }
.verdict { border-left: 6px solid currentColor; border-radius: 6px; padding: 1rem 1.25rem;
  margin: 1.25rem 0; }
.verdict p { color: var(--text); margin: .25rem 0 0; max-width: 95ch; }
.verdict .word { font-size: 1.35rem; font-weight: 700; margin: 0; color: inherit; }
.bad { color: var(--bad); } .warn { color: var(--warn); } .good { color: var(--good); }
.verdict.bad { background: var(--bad-panel); } .verdict.warn { background: var(--warn-panel); }
.verdict.good { background: var(--good-panel); }
dl.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr));
  gap: .75rem 1.25rem; margin: 1rem 0; }
dl.facts div { border-top: 1px solid var(--line); padding-top: .4rem; }
dt { color: var(--muted); font-size: .8rem; } dd { margin: 0; overflow-wrap: anywhere; }
article { border: 1px solid var(--line); border-radius: 8px; padding: 1.1rem 1.25rem;
  margin: 1rem 0 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .5rem 0 1rem; }
caption { text-align: left; color: var(--muted); font-size: .85rem; padding-bottom: .35rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .75rem .35rem 0;
  border-top: 1px solid var(--line); overflow-wrap: anywhere; }
thead th { border-top: 0; color: var(--muted); font-weight: 600; font-size: .8rem;
  vertical-align: bottom; overflow-wrap: normal; }
th[scope=row] { font-weight: 600; white-space: nowrap; }
.names th[scope=row] { white-space: normal; min-width: 6rem; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.place { white-space: nowrap; }
tr.culprit td, tr.culprit th { background: var(--bad-panel); }
tr.culprit th { padding-left: .5rem; color: var(--bad); }
.tag { display: inline-block; border: 1px solid currentColor; border-radius: 999px;
  padding: 0 .55rem; font-size: .78rem; white-space: nowrap; }
.advice { background: var(--note-panel); border-radius: 6px; padding: .75rem 1rem; }
.advice p { margin: .2rem 0; max-width: 95ch; }
.advice + .advice { margin-top: .75rem; }
table.pool { width: auto; border-collapse: separate; border-spacing: 3px; }
table.pool th { border: 0; padding: 0 .5rem 0 0; color: var(--muted); font-weight: 400;
  text-align: right; vertical-align: middle; }
table.pool td { border: 1px solid var(--line); border-radius: 4px; padding: 0; width: 2rem;
  min-width: 1.7rem; height: 1.9rem; text-align: center; vertical-align: middle; }
table.pool td.marked { outline: 3px solid var(--bad); outline-offset: 1px; font-weight: 700; }
ul.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; padding: 0;
  margin: .25rem 0 1rem; font-size: .85rem; }
.key { display: inline-block; min-width: 1.5rem; text-align: center; border-radius: 4px;
  border: 1px solid var(--line); margin-right: .4rem; padding: 0 .3rem; }
svg { display: block; width: 100%; }
.life { height: 14px; min-width: 14rem; }
.chart { height: 110px; border-bottom: 1px solid var(--line); }
.waiting { fill: var(--waiting); } .prefill { fill: var(--prefill); }
.decode { fill: var(--decode); } .preempted { fill: var(--preempted); }
.held { fill: var(--held); } .cached { fill: var(--cached); }
.mark { stroke: var(--bad); stroke-width: 2; vector-effect: non-scaling-stroke; }
svg.sample { display: inline-block; width: 22px; height: 12px; margin-right: .35rem;
  vertical-align: -1px; }
footer { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: .75rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, h3, h4, caption { break-after: avoid; }
  tr, .advice, .verdict, table.pool, svg { break-inside: avoid; }
  thead { display: table-header-group; }
  .scroll { overflow: visible; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""


def stylesheet() -> str:
    owners = "\n".join(f".owner{n} {{ background: var(--owner{n}); }}" for n in range(OWNERS))
    return (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
        f"{_RULES}{owners}\n"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {value};" for name, value in colours.items())
