package event

import (
	"fmt"
	"log/syslog"
	"strconv"
	"strings"
	"time"

	"github.com/crewjam/rfc5424"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// priority returns the severity of syslog for a result.
func priority(s checks.Severity) syslog.Priority {
	switch s {
	case checks.Fail:
		return syslog.LOG_ERR
	case checks.Warn, checks.Unknown:
		return syslog.LOG_WARNING
	}
	return syslog.LOG_INFO
}

// summary is the event as one sentence.
func (e *Event) summary() string {
	if r := e.worst(); r != nil {
		return fmt.Sprintf("node %s: %s: %s", e.Node, e.Verdict, r.title())
	}
	return fmt.Sprintf("node %s: %s: %d checks passed", e.Node, e.Verdict, e.count()[checks.OK])
}

// field is a name and a value of structured data.
type field struct{ name, value string }

// maxValue keeps a record below the 8 KiB that a syslog daemon takes, bytes.
const maxValue = 1 << 10

// cut returns at most that many bytes of a text.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "")
}

// fields returns the event, and one of its findings if r is not nil, as names and values.
func (e *Event) fields(r *Result) []field {
	list := []field{
		{"schema", strconv.Itoa(e.Schema)}, {"node", e.Node}, {"context", e.Context}, {"mode", e.Mode}, {"verdict", e.Verdict.String()},
		{"job", e.Job}, {"milliseconds", strconv.FormatFloat(e.Milliseconds, 'f', 1, 64)},
	}
	if e.Slurm != nil {
		list = append(list, field{"slurm", e.Slurm.Action}, field{"sent", strconv.FormatBool(e.Slurm.Sent)}, field{"owner", e.Slurm.Owner})
		if e.Slurm.Held {
			list = append(list, field{"held", "true"})
		}
	}
	if r != nil {
		list = append(list, field{"check", r.Check}, field{"code", r.Code}, field{"severity", r.Severity.String()}, field{"device", r.Device.Name},
			field{"pci", r.Device.PCI}, field{"serial", r.Device.Serial}, field{"uuid", r.Device.UUID}, field{"want", r.Want}, field{"got", r.Got},
			field{"remedy", string(r.Remedy)})
		if r.Silenced != nil {
			list = append(list, field{"silenced", r.Silenced.Term()})
		}
	}
	if r != nil && r.Drill {
		list = append(list, field{"drill", "true"})
	}
	kept := list[:0]
	for _, f := range list {
		if f.value = cut(text(f.value), maxValue); f.value != "" {
			kept = append(kept, f)
		}
	}
	return kept
}

// records returns what syslog and the journal get: an entry for each finding, or one for a run without
// findings.
func (e *Event) records() []*Result {
	var list []*Result
	for i := range e.Results {
		if e.Results[i].Severity > checks.Skip {
			list = append(list, &e.Results[i])
		}
	}
	if list == nil {
		list = append(list, nil)
	}
	return list
}

func (e *Event) entry(r *Result) (message string, severity checks.Severity) {
	message, severity = e.summary(), e.Verdict
	if r != nil {
		message, severity = r.title(), r.Severity
	}
	return cut(message, maxValue), severity
}

// word returns a text as a field in the header of RFC 5424: no spaces, nothing but ASCII.
func word(s string, most int) string {
	return cut(strings.ReplaceAll(label(s), " ", "_"), most)
}

// Syslog returns the event as messages of RFC 5424 with structured data, of the facility daemon. tag is
// NAME, id the SD-ID.
func (e *Event) Syslog(tag, id string, pid int) (lines []string) {
	for _, r := range e.records() {
		message, severity := e.entry(r)
		m := rfc5424.Message{
			Priority: rfc5424.Daemon | rfc5424.Priority(priority(severity)), Timestamp: e.Time.Truncate(time.Millisecond).UTC(), Hostname: word(e.Node, 255),
			AppName: word(tag, 48), ProcessID: strconv.Itoa(pid), MessageID: "health", Message: []byte(message),
		}
		for _, f := range e.fields(r) {
			m.AddDatum(id, f.name, f.value)
		}
		data, err := m.MarshalBinary()
		if err == nil { // an error is an SD-ID that nhc.toml does not allow
			lines = append(lines, string(data))
		}
	}
	return lines
}

// Entry is one entry of the journal of systemd.
type Entry struct {
	Message  string
	Priority int
	Fields   map[string]string
}

// messageID identifies our entries in the journal: journalctl MESSAGE_ID=...
const messageID = "b6d3b0f1a0d54f0f8f0a3c0ce1a6b1d7"

// Journal returns the event as entries of the journal of systemd.
func (e *Event) Journal(tag string) (entries []Entry) {
	for _, r := range e.records() {
		message, severity := e.entry(r)
		fields := map[string]string{"SYSLOG_IDENTIFIER": tag, "MESSAGE_ID": messageID}
		for _, f := range e.fields(r) {
			fields["NHC_"+strings.ToUpper(f.name)] = f.value
		}
		entries = append(entries, Entry{message, int(priority(severity)), fields})
	}
	return entries
}
