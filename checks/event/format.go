package event

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Formats are the formats of [Event.Write].
var Formats = []string{"jsonl", "nagios", "npd", "junit", "prometheus"}

// View is how an event is written.
type View struct {
	Label  string // of the metrics, see [Event.Prometheus]
	Failed bool   // write only the results that are not ok; the counts are of all
}

// Write writes the event in one of [Formats] and returns the exit status that goes with it.
func (e *Event) Write(w io.Writer, format string, v View) (exit int, err error) {
	n := e.count()
	if v.Failed {
		e = new(*e)
		e.Results = e.Findings()
	}
	switch format {
	case "jsonl":
		_, err = w.Write(append(e.Line(), '\n'))
	case "nagios":
		_, err = io.WriteString(w, e.nagios(n))
	case "npd":
		_, err = io.WriteString(w, e.npd())
		return e.npdStatus(), err
	case "junit":
		err = e.junit(w, n)
	case "prometheus":
		_, err = w.Write(e.Prometheus(false, v.Label))
	default:
		panic("event: no format " + format)
	}
	return e.Verdict.ExitStatus(), err
}

// worst returns the first finding of the highest severity, nil if there is none.
func (e *Event) worst() *Result {
	var worst *Result
	for i := range e.Results {
		if r := &e.Results[i]; r.Severity > checks.Skip && (worst == nil || r.Severity > worst.Severity) {
			worst = r
		}
	}
	return worst
}

// text returns a message on one line.
func text(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// title returns the message of a finding, or its check, code and device if privacy has removed the
// message.
func (r *Result) title() string { return cmp.Or(text(r.Message), r.name()) }

// name returns check, code and device of a finding, with the mark of a drill.
func (r *Result) name() string {
	name := text(r.Check + " " + r.Code + " " + r.hardware())
	if r.Drill {
		return checks.DrillMark + name
	}
	return name
}

// counts has the number of results of each severity.
type counts [checks.Fail + 1]int

func (n counts) sum() (sum int) {
	for _, x := range n {
		sum += x
	}
	return sum
}

func (e *Event) count() (n counts) {
	for i := range e.Results {
		if s := e.Results[i].Severity; s >= checks.OK && s <= checks.Fail {
			n[s]++
		}
	}
	return n
}

// nagios returns one line of a Nagios plugin: no "|" but the one before the performance data.
func (e *Event) nagios(n counts) string {
	state := [...]string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}[e.Verdict.ExitStatus()]
	what := fmt.Sprintf("%d checks passed", n[checks.OK])
	if r := e.worst(); r != nil {
		what = r.title()
	}
	return fmt.Sprintf("NHC %s - %s|failed=%d;;1 warned=%d;1 unknown=%d passed=%d time=%.3fs\n", state, strings.ReplaceAll(what, "|", "/"),
		n[checks.Fail], n[checks.Warn], n[checks.Unknown], n[checks.OK], e.Milliseconds/1000)
}

// npdMost is the part of a message that node-problem-detector keeps by default, bytes.
const npdMost = 80

// npd returns the message of a plugin of node-problem-detector. Any user of a Kubernetes cluster can
// read it, so it has no text that could name a user, a process or a file.
func (e *Event) npd() string {
	worst := e.worst()
	if worst == nil {
		return "node is healthy\n"
	}
	what := worst.name()
	if worst.Check == Whole && worst.Remedy == checks.FixConfig {
		what = "unknown: configuration unusable, run nhc-gpu lint"
	}
	if more := len(e.Findings()) - 1; more > 0 {
		what += fmt.Sprintf(" and %d more", more)
	}
	what = label(what)
	return what[:min(len(what), npdMost)] + "\n"
}

// npdStatus returns 0 for a healthy node, 1 for a fault; any other status is unknown.
func (e *Event) npdStatus() int {
	switch e.Verdict {
	case checks.Fail:
		return 1
	case checks.Unknown:
		return 3
	}
	return 0
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Host     string      `xml:"hostname,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Seconds  string      `xml:"time,attr"`
	Time     string      `xml:"timestamp,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name    string     `xml:"name,attr"`
	Class   string     `xml:"classname,attr"`
	Seconds string     `xml:"time,attr"`
	Failure *junitText `xml:"failure"`
	Error   *junitText `xml:"error"`
	Skipped *junitText `xml:"skipped"`
	Out     string     `xml:"system-out,omitempty"`
}

type junitText struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
}

// junit writes a JUnit test suite: a finding that fails is a failure, an unknown one an error, a
// warning the output of a passed case.
func (e *Event) junit(w io.Writer, n counts) error {
	s := junitSuite{
		Name: "nhc-gpu", Host: e.Node, Tests: n.sum(), Failures: n[checks.Fail], Errors: n[checks.Unknown], Skipped: n[checks.Skip],
		Seconds: seconds(e.Milliseconds), Time: e.Time.UTC().Format("2006-01-02T15:04:05"),
	}
	for i := range e.Results {
		r := &e.Results[i]
		c := junitCase{Name: text(strings.TrimSpace(r.Line + " " + r.Device.String())), Class: r.Check, Seconds: seconds(r.Milliseconds)}
		if c.Name == "" {
			c.Name = r.Check
		}
		about := &junitText{Message: text(r.Message), Type: r.Code}
		switch r.Severity {
		case checks.Fail:
			c.Failure = about
		case checks.Unknown:
			c.Error = about
		case checks.Skip:
			c.Skipped = about
		default:
			c.Out = about.Message
		}
		s.Cases = append(s.Cases, c)
	}
	data, err := xml.MarshalIndent(s, "", "  ")
	if err == nil {
		_, err = fmt.Fprintf(w, "%s%s\n", xml.Header, data)
	}
	return err
}

func seconds(milliseconds float64) string { return fmt.Sprintf("%.3f", milliseconds/1000) }

// maxSeries bounds the series of one family: a node with more findings reports the worst.
const maxSeries = 500

// Prometheus returns the metrics of the event in the text format 0.0.4. No value of a label is a
// name of a user, a process or a file. autopilot adds the gauge of IBM Autopilot. node is a label of
// each series if it is not empty: the metrics of several nodes of one host differ only in it.
func (e *Event) Prometheus(autopilot bool, node string) []byte {
	var b strings.Builder
	family := func(name, help string) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n", name, help, name)
	}
	family("nhc_gpu_check_result", "Result of a check: 0 ok, 1 warn, 2 fail, 3 unknown.")
	e.checkResults(&b)
	e.silenced(family, &b)
	n := e.count()
	if !e.Time.IsZero() { // no run yet
		family("nhc_gpu_run_timestamp_seconds", "Time of the last run, in seconds since 1970.")
		fmt.Fprintf(&b, "nhc_gpu_run_timestamp_seconds %.3f\n", float64(e.Time.UnixMilli())/1000)
	}
	family("nhc_gpu_run_duration_seconds", "Duration of the last run.")
	fmt.Fprintf(&b, "nhc_gpu_run_duration_seconds %s\n", seconds(e.Milliseconds))
	family("nhc_gpu_verdict", "Verdict of the last run: 0 ok, 1 warn, 2 fail, 3 unknown.")
	fmt.Fprintf(&b, "nhc_gpu_verdict %d\n", e.Verdict.ExitStatus())
	if !e.Since.IsZero() {
		family("nhc_gpu_verdict_since_timestamp_seconds", "Time since when the verdict is the same, in seconds since 1970.")
		fmt.Fprintf(&b, "nhc_gpu_verdict_since_timestamp_seconds %.3f\n", float64(e.Since.UnixMilli())/1000)
	}
	family("nhc_gpu_unknown", "Number of checks that could not be evaluated.")
	fmt.Fprintf(&b, "nhc_gpu_unknown %d\n", n[checks.Unknown])
	if e.Slurm != nil {
		family("nhc_gpu_drained", "1 if the node is drained, as far as the last run knows; owner is nhc or other.")
		for _, owner := range []string{OwnerNHC, OwnerOther} {
			fmt.Fprintf(&b, "nhc_gpu_drained{owner=%q} %d\n", owner, bit(e.Slurm.Owner == owner))
		}
		family("nhc_gpu_held_by_guard", "1 if the node has failed and the guard holds its drain.")
		fmt.Fprintf(&b, "nhc_gpu_held_by_guard %d\n", bit(e.Slurm.Held))
	}
	family("nhc_gpu_output_failures", "Number of outputs that failed in the run before.")
	fmt.Fprintf(&b, "nhc_gpu_output_failures %d\n", len(e.Outputs))
	family("nhc_gpu_drill_active", "1 if a drill is under way: a finding, and the drain for it, can be a rehearsal.")
	fmt.Fprintf(&b, "nhc_gpu_drill_active %d\n", bit(e.Drill != nil))
	if autopilot {
		family("autopilot_health_checks", "Summary of health checks, as IBM Autopilot exports it: 0 passed, 1 failed.")
		e.autopilot(&b)
	}
	if node == "" {
		return []byte(b.String())
	}
	return []byte(labelNode(b.String(), node))
}

// labelNode adds the label of a node to each series.
func labelNode(text, node string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		switch at := strings.IndexAny(line, "{ "); {
		case strings.HasPrefix(line, "#"):
			b.WriteString(line)
		case line[at] == '{':
			fmt.Fprintf(&b, "%s{slurm_node=%q,%s", line[:at], label(node), line[at+1:])
		default:
			fmt.Fprintf(&b, "%s{slurm_node=%q}%s", line[:at], label(node), line[at:])
		}
	}
	return b.String()
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// checkResults writes the results of the checks, the worst first.
func (e *Event) checkResults(b *strings.Builder) {
	type series struct{ check, code, device string }
	values, order := map[series]int{}, []series(nil)
	for i := range e.Results {
		r := &e.Results[i]
		if r.Severity == checks.Skip {
			continue
		}
		s := series{check: r.Check, code: r.Code, device: r.hardware()}
		old, known := values[s]
		if !known {
			order = append(order, s)
		}
		values[s] = max(old, r.Severity.ExitStatus())
	}
	slices.SortStableFunc(order, func(a, b series) int { return values[b] - values[a] })
	for _, s := range order[:min(len(order), maxSeries)] {
		fmt.Fprintf(b, "nhc_gpu_check_result{check=%q,code=%q,device=%q} %d\n", label(s.check), label(s.code), label(s.device), values[s])
	}
}

// silenced writes the failures that a person has accepted.
func (e *Event) silenced(family func(name, help string), b *strings.Builder) {
	seen := map[string]bool{}
	for i := range e.Results {
		r := &e.Results[i]
		labels := fmt.Sprintf("check=%q,code=%q,device=%q", label(r.Check), label(r.Code), label(r.hardware()))
		if r.Silenced == nil || seen[labels] || len(seen) >= maxSeries {
			continue
		}
		if len(seen) == 0 {
			family("nhc_gpu_silenced_until_timestamp_seconds", "End of a failure that a person has silenced, in seconds since 1970; 0: until the hardware changes.")
		}
		seen[labels] = true
		var until int64
		if !r.Silenced.Until.IsZero() {
			until = r.Silenced.Until.Unix()
		}
		fmt.Fprintf(b, "nhc_gpu_silenced_until_timestamp_seconds{%s} %d\n", labels, until)
	}
}

// autopilotNames are the checks with a result of 0 or 1 in IBM Autopilot, by its names
// (github.com/IBM/autopilot, autopilot-daemon/pkg/healthcheck). Its "pciebw" and "ping" are
// measurements and are not exported.
var autopilotNames = map[string]string{
	"check_gpu_remap": "remapped", "check_gpu_throttle": "power-slowdown", "check_dcgm_diag": "dcgm", "check_gpu_memtest": "gpumem",
}

func (e *Event) autopilot(b *strings.Builder) {
	type series struct{ health, device string }
	values := map[series]int{}
	for i := range e.Results {
		r := &e.Results[i]
		name, ok := autopilotNames[r.Check]
		if !ok || r.Severity == checks.Skip || r.Severity == checks.Unknown {
			continue
		}
		s := series{health: name}
		if r.Severity == checks.Fail {
			s.device = strings.TrimPrefix(r.Device.Name, "gpu")
		}
		values[s] = max(values[s], r.Severity.ExitStatus()/checks.Fail.ExitStatus())
	}
	order := slices.SortedFunc(maps.Keys(values), func(a, b series) int {
		return cmp.Or(cmp.Compare(a.health, b.health), cmp.Compare(a.device, b.device))
	})
	for _, s := range order {
		fmt.Fprintf(b, "autopilot_health_checks{health=%q,node=%q,cpumodel=\"\",gpumodel=\"\",deviceid=%q} %d\n", s.health, label(e.Node), label(s.device), values[s])
	}
}

// The owners of a drained node.
const (
	OwnerNHC   = "nhc"
	OwnerOther = "other"
)

// label keeps the characters that every collector takes.
func label(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, s)
}
