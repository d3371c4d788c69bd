// Numbers as a reader takes them; what is missing is a dash.

const MISSING = "–";

function given(value, text) {
  return value === null || value === undefined ? MISSING : text(value);
}

function percent(share) {
  return given(share, (v) => `${(100 * v).toFixed(2)} %`);
}

// A difference of two shares, in points of a percent.
function points(difference) {
  const sign = (v) => ["−", "", "+"][Math.sign(v) + 1];
  return given(difference, (v) => `${sign(v)}${Math.abs(100 * v).toFixed(2)}`);
}

function whole(number) {
  return given(number, (v) => v.toLocaleString("en-US", { maximumFractionDigits: 0 }));
}

function megabytes(bytes) {
  const digits = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
  return given(bytes, (v) => (v / 1e6).toLocaleString("en-US", digits));
}

function seconds(value) {
  return given(value, (v) => v.toFixed(1));
}

function plain(value) {
  if (value === null || value === undefined) return MISSING;
  return typeof value === "string" ? value : JSON.stringify(value);
}

function short(number) {
  return given(number, (v) => String(Number(v.toPrecision(4))));
}

function mean(values) {
  return values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
}
