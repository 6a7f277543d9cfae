package verdict

import (
	"encoding/json"
	"io"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Row is one line of a report: a finding, a check without one, or a fact about the
// node.
type Row struct {
	Severity checks.Severity
	Name     string
	Line     string // the check line as written
	Code     string
	Device   checks.Device
	Message  string
	Fact     string // what a check that passes has found: "8 GPUs, hottest 61 C"
	Detail   string // the message with the functions of vendors' libraries, if it names any
	Want     string
	Got      string
	Took     time.Duration
	Remedy   checks.Remedy
	Do       string // the advice
	Place    *checks.Place
	Output   string // the output of a shell line, unless it is printed directly
	Shell    bool   // a shell line
	Drill    bool   // of a rehearsal
	Silenced *checks.Silenced
}

// Report is the result of a run: the facts about the node and the results of the checks.
type Report struct {
	Version string // of this program
	Node    string
	From    string // the name of the configuration
	Facts   []Row
	Rows    []Row

	ShellLines int  // how many lines of the configuration bash runs
	NoShell    bool // --no-shell: these lines did not run
	Failed     bool // print only the results that are not ok
}

// isHeld reports whether the row is about an action that was not carried out.
func (r *Row) isHeld() bool { return r.Code == checks.HeldCode }

// countNotDone counts the actions that were not carried out.
func (r *Report) countNotDone() (n int) {
	for i := range r.Rows {
		if r.Rows[i].isHeld() {
			n++
		}
	}
	return n
}

// Exit returns the exit status: 0 ok, 1 warn, 2 fail, 3 unknown. Fail takes precedence over
// unknown.
func (r *Report) Exit() int { return r.worst().ExitStatus() }

func (r *Report) worst() checks.Severity {
	worst := checks.OK
	for i := range r.Rows {
		worst = max(worst, r.Rows[i].Severity)
	}
	return worst
}

func (r *Report) count() map[checks.Severity]int {
	count := map[checks.Severity]int{}
	for i := range r.Rows {
		if !r.Rows[i].isHeld() {
			count[r.Rows[i].Severity]++
		}
	}
	return count
}

// redacted replaces the identity of a single board.
const redacted = "redacted"

var boardID = checks.Lazily(`\b(GPU|MIG)-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b`)

// Redact removes serial numbers and UUIDs.
func (r *Report) Redact() {
	for _, rows := range [][]Row{r.Facts, r.Rows} {
		for i := range rows {
			row := &rows[i]
			for _, id := range []*string{&row.Device.Serial, &row.Device.UUID} {
				if *id != "" {
					*id = redacted
				}
			}
			if row.Place != nil && row.Place.Transceiver != nil && row.Place.Transceiver.Serial != "" {
				place, module := *row.Place, *row.Place.Transceiver
				module.Serial, place.Transceiver = redacted, &module
				row.Place = &place
			}
			for _, text := range []*string{&row.Line, &row.Device.Name, &row.Message, &row.Fact, &row.Detail, &row.Want, &row.Got, &row.Output} {
				*text = boardID().ReplaceAllString(*text, "$1-"+redacted)
			}
		}
	}
}

// found returns the word for the severity of a fact.
func found(s checks.Severity) string {
	switch s {
	case checks.Skip:
		return "no"
	case checks.Unknown:
		return "?"
	}
	return "yes"
}

// The keys of JSON: docs/reference/run.md. They never change.
type (
	jsonReport struct {
		Version string         `json:"version"`
		Node    string         `json:"node"`
		Config  string         `json:"config"`
		Result  string         `json:"result"`
		Exit    int            `json:"exit"`
		Count   map[string]int `json:"count"`
		Facts   []jsonFact     `json:"facts"`
		Results []jsonResult   `json:"results"`

		NotDone   int `json:"not_done,omitempty"`            // actions that --act carries out
		ShellRun  int `json:"shell_lines_run,omitempty"`     // lines of the configuration that bash ran
		ShellLeft int `json:"shell_lines_not_run,omitempty"` // the same, with --no-shell
	}
	jsonFact struct {
		Thing  string `json:"thing"`
		Found  string `json:"found"`
		Detail string `json:"detail"`
	}
	jsonResult struct {
		Result  string        `json:"result"`
		Check   string        `json:"check"`
		Line    string        `json:"line,omitempty"`
		Code    string        `json:"code,omitempty"`
		Device  checks.Device `json:"device,omitzero"`
		Message string        `json:"message,omitempty"`
		Fact    string        `json:"fact,omitempty"`
		Detail  string        `json:"detail,omitempty"`
		Want    string        `json:"want,omitempty"`
		Got     string        `json:"got,omitempty"`
		Remedy  checks.Remedy `json:"remedy,omitempty"`
		Do      string        `json:"do,omitempty"`
		TookMS  float64       `json:"took_ms"`
		Output  string        `json:"output,omitempty"`
		Place   *checks.Place `json:"place,omitempty"`

		Silenced *checks.Silenced `json:"silenced,omitempty"`
	}
)

// JSON writes one object.
func (r *Report) JSON(w io.Writer) error {
	out := jsonReport{
		Version: r.Version, Node: r.Node, Config: r.From, Result: r.worst().String(), Exit: r.Exit(), Count: map[string]int{}, NotDone: r.countNotDone(),
		Facts: []jsonFact{}, Results: []jsonResult{},
	}
	if r.NoShell {
		out.ShellLeft = r.ShellLines
	} else {
		out.ShellRun = r.ShellLines
	}
	count := r.count()
	for s := checks.OK; s <= checks.Fail; s++ {
		out.Count[s.String()] = count[s]
	}
	for _, f := range r.Facts {
		out.Facts = append(out.Facts, jsonFact{f.Name, found(f.Severity), f.Message})
	}
	for _, row := range r.Rows {
		if r.Failed && row.Severity < checks.Warn {
			continue
		}
		if row.Remedy == checks.NoRemedy && row.Severity == checks.Fail && row.Code != "" && !checks.OfLBNL(row.Name) {
			row.Remedy = "none"
		}
		result := jsonResult{row.Severity.String(), row.Name, row.Line, row.Code, row.Device, row.Message, row.Fact, row.Detail, row.Want, row.Got, row.Remedy, row.Do,
			float64(row.Took.Microseconds()) / 1000, row.Output, row.Place, row.Silenced}
		out.Results = append(out.Results, result)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(out)
}
