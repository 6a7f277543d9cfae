package outputs

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/evidence"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/checks/verdict"
)

// EvidenceLimit bounds the collection of evidence.
const EvidenceLimit = 10 * time.Second

// archiveOf returns the name of the archive to write, "" for none, and the path of the archive for the
// event: this run is the first that fails with a code. old is the event of the run before, nil for
// none.
func archiveOf(e, old *event.Event, past string) (name, path string) {
	for _, r := range e.Findings() {
		if needsEvidence(r) && !isArchived(&r, old) {
			name = EvidenceName(e.Time, r.Code)
			return name, filepath.Join(past, evidence.Dir, name)
		}
	}
	if old != nil && (e.Verdict == checks.Fail || slices.ContainsFunc(e.Results, needsEvidence)) {
		return "", old.Evidence // of this fault
	}
	return "", e.Evidence
}

// isArchived reports whether an archive of an earlier run is about the code of a result, and about its job: the
// samples before a second job hangs are not in the archive about the first.
func isArchived(r *event.Result, old *event.Event) bool {
	return old != nil && old.Evidence != "" && slices.ContainsFunc(old.Results, func(was event.Result) bool {
		return was.Code == r.Code && was.Drill == r.Drill && !was.Unarchived && needsEvidence(was) && (r.Check != event.JobHealth || was.Jobs == r.Jobs)
	})
}

// loseArchive marks the findings of the kept event whose archive could not be written: the next run tries again.
func loseArchive(kept, old *event.Event) {
	kept.Results, kept.Evidence = slices.Clone(kept.Results), ""
	for i := range kept.Results {
		r := &kept.Results[i]
		if r.Unarchived = needsEvidence(*r) && !isArchived(r, old); !r.Unarchived && needsEvidence(*r) {
			kept.Evidence = old.Evidence
		}
	}
}

// needsEvidence reports whether a result is a failure, or one of a running job, whose samples are gone after minutes.
func needsEvidence(r event.Result) bool {
	return r.Code != "" && (r.Severity == checks.Fail || r.Check == event.JobHealth && r.Would != "")
}

// EvidenceName returns the name of an archive.
func EvidenceName(at time.Time, code string) string { return evidence.Name(at, code) }

// keepEvidence writes the archive and reports whether that worked. A failure is counted like that of an
// output. It asks no library of a vendor, since that may be the fault.
func (d *delivery) keepEvidence(name string) bool {
	facts := d.n.Facts(checks.Local)
	_, err := WriteEvidence(d.n, facts, d.event, &wire.Request{Name: name}, d.left(EvidenceLimit))
	d.fail("evidence", err)
	return err == nil
}

// WriteEvidence completes and sends a request for an archive, and returns its path.
func WriteEvidence(n *node.Node, rows []verdict.Row, e *event.Event, q *wire.Request, limit time.Duration) (path string, err error) {
	var facts strings.Builder
	for _, row := range rows {
		fmt.Fprintf(&facts, "%s: %s\n", row.Name, row.Message)
	}
	q.Op, q.Line = wire.OpEvidence, "keep the evidence"
	q.Files = []wire.Named{{Name: "facts.txt", Data: []byte(facts.String())}}
	if e != nil {
		q.Files = append(q.Files, wire.Named{Name: "event.json", Data: append(e.Line(), '\n')})
	}
	o := n.Pool.Call(n.Ctx, checks.Local, q, limit)
	resp, err := o.AnswerTo(q.Line)
	if err != nil {
		return "", err
	}
	return resp.Text, nil
}
