//! How the page looks: on light and dark screens, and on paper.

/// The style of the page. Pictures have their own.
pub(super) const PAGE: &str = "\
:root { color-scheme: light dark; --ink: #1f2328; --faint: #59636e; --rule: #d0d7de; --paper: #ffffff;
  --card: #f6f8fa; --link: #0550ae; --good: #116329; --good-bg: #dafbe1; --mid: #7a4a00; --mid-bg: #fff4d6;
  --bad: #a40e26; --bad-bg: #ffebe9; --none-bg: #eaeef2 }
@media screen and (prefers-color-scheme: dark) { :root { --ink: #f0f6fc; --faint: #9da7b3; --rule: #30363d;
  --paper: #0d1117; --card: #151b23; --link: #79b8ff; --good: #56d364; --good-bg: #12261e; --mid: #e3b341;
  --mid-bg: #272115; --bad: #ff8b82; --bad-bg: #2d1517; --none-bg: #21262d } }
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1.5rem; max-width: 66rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif }
h1 { font-size: 1.7rem; margin: 0 0 .3rem } h2 { font-size: 1.3rem; margin: 0 0 .2rem }
h3 { font-size: 1.02rem; margin: 1.3rem 0 .4rem }
p { margin: .4rem 0; max-width: 48rem } a { color: var(--link) }
.faint { color: var(--faint) } .id { font-weight: 600; white-space: nowrap }
section { margin-top: 2.2rem; padding-top: 1.2rem; border-top: 2px solid var(--rule) }
.question { font-size: 1.06rem } .verdict { border-left: 4px solid var(--rule); padding: .4rem .8rem; background: var(--card) }
.scroll { overflow-x: auto } table { border-collapse: collapse; font-size: .86rem; margin: .4rem 0 }
th, td { text-align: left; vertical-align: top; padding: .28rem .6rem; border-bottom: 1px solid var(--rule) }
th { background: var(--card); font-weight: 600 } td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
td.n { white-space: nowrap } th.n { min-width: 5.5rem } .wide td:first-child { min-width: 11rem }
td small { color: var(--faint); display: block; font-size: .92em } .why { white-space: normal; min-width: 11rem }
.summary td { min-width: 6rem } .summary { width: 100% }
.grade { display: inline-block; padding: .02rem .5rem; border-radius: 1rem; font-size: .82rem; font-weight: 600; white-space: nowrap }
.good { color: var(--good); background: var(--good-bg) } .mid { color: var(--mid); background: var(--mid-bg) }
.bad { color: var(--bad); background: var(--bad-bg) } .none { color: var(--faint); background: var(--none-bg) }
figure { margin: 1rem 0; padding: 0; max-width: 46rem; break-inside: avoid } figure svg { width: 100%; height: auto; display: block }
figcaption { font-weight: 600; font-size: .94rem } figure p.faint { font-weight: 400; font-size: .84rem }
ul { margin: .3rem 0; padding-left: 1.3rem; max-width: 50rem } li { margin: .15rem 0; overflow-wrap: anywhere }
details { margin: .5rem 0; border: 1px solid var(--rule); border-radius: 6px; padding: .3rem .8rem }
summary { cursor: pointer; font-weight: 600; font-size: .92rem }
code { font-family: ui-monospace, 'Liberation Mono', 'DejaVu Sans Mono', monospace; font-size: .9em; background: var(--card);
  padding: .1rem .3rem; border-radius: 4px; overflow-wrap: anywhere }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; font-size: .88rem; margin: .4rem 0 }
dt { color: var(--faint) } dd { margin: 0; overflow-wrap: anywhere }
@media (max-width: 40rem) { body { padding: .8rem } dl { grid-template-columns: 1fr } }
@media print { body { max-width: none; padding: 0; font-size: 9.5pt } .scroll { overflow: visible } table { font-size: 7.5pt }
  section { break-before: page; border-top: none; margin-top: 0 } tr { break-inside: avoid } h3 { break-after: avoid }
  a { color: inherit; text-decoration: none } figure { max-width: 16cm } th, td { padding: .12rem .3rem }
  .grade, .verdict, th { -webkit-print-color-adjust: exact; print-color-adjust: exact }
  details:not([open])::details-content { content-visibility: visible; height: auto; display: block } }
";
