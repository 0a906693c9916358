// Draws panels of conf/grafana/kafkalite.json with Grafana's own components. window.BOARD has the panels with their
// series, what Prometheus has answered; __main__.py writes it.
import { createRoot } from "react-dom/client";
import { createTheme, dateTime, FieldType, getDisplayProcessor, toDataFrame } from "@grafana/data";
import { BigValue, GlobalStyles, PanelChrome, ThemeContext, TimeSeries } from "@grafana/ui";

const { panels, width, rowHeight, from, to } = window.BOARD;
const GAP = 8;
const theme = createTheme({ colors: { mode: "light" } });
const range = { from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } };
// What Grafana takes where a panel says nothing.
const LINES = { drawStyle: "line", lineWidth: 1, fillOpacity: 0, showPoints: "auto", spanNulls: false };
const GREEN = { mode: "absolute", steps: [{ color: "green", value: null }] };

function framesOf(panel) {
  const defaults = panel.fieldConfig.defaults;
  const steps = (defaults.thresholds ?? GREEN).steps.map((step) => ({ ...step, value: step.value ?? -Infinity }));
  const color = { mode: panel.type === "stat" ? "thresholds" : "palette-classic" };
  return panel.series.map((one, index) => {
    const config = {
      ...defaults, thresholds: { mode: "absolute", steps }, color, custom: LINES, displayName: one.name,
    };
    const frame = toDataFrame({
      refId: String(index),
      fields: [
        { name: "Time", type: FieldType.time, values: one.times, config: {} },
        { name: one.name, type: FieldType.number, values: one.values, config },
      ],
    });
    for (const field of frame.fields) {
      field.state = { seriesIndex: index };
      field.display = getDisplayProcessor({ field, theme, timeZone: "utc" });
    }
    return frame;
  });
}

function Content({ panel, width, height }) {
  const frames = framesOf(panel);
  if (frames.length === 0) {
    return <div style={{ padding: 16 }}>No data</div>;
  }
  const size = { width, height, theme };
  if (panel.type === "stat") {
    const field = frames[0].fields[1];
    return <BigValue {...size} value={field.display(field.values.at(-1))} colorMode="value" graphMode="none" />;
  }
  const legend = { showLegend: true, displayMode: "list", placement: "bottom", calcs: [] };
  return <TimeSeries {...size} frames={frames} timeRange={range} timeZone="utc" legend={legend} structureRev={1} />;
}

function Panel({ panel }) {
  const { x, y, w, h } = panel.gridPos;
  const [outerWidth, outerHeight] = [(w * width) / 24 - GAP, h * rowHeight - GAP];
  const place = { position: "absolute", left: (x * width) / 24, top: y * rowHeight, width: outerWidth };
  if (panel.type === "row") {
    return <div style={{ ...place, paddingTop: 4, fontWeight: 500 }}>{panel.title}</div>;
  }
  return (
    <div style={place}>
      <PanelChrome title={panel.title} description={panel.description} width={outerWidth} height={outerHeight}>
        {(innerWidth, innerHeight) => <Content panel={panel} width={innerWidth} height={innerHeight} />}
      </PanelChrome>
    </div>
  );
}

createRoot(document.getElementById("board")).render(
  <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    {panels.map((panel) => <Panel key={panel.id} panel={panel} />)}
  </ThemeContext.Provider>,
);
