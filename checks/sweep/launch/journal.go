package launch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// entry is a line of the journal of a maintenance. It is on the disk before the step is done: after a
// crash at any point, [repair] finds the steps to undo.
type entry struct {
	Reserve  string `json:"reserve,omitempty"`  // a reservation of this name is made
	Job      string `json:"job,omitempty"`      // of the sweep, which repair cancels
	Resume   string `json:"resume,omitempty"`   // this node is put into service within the reservation
	Reason   string `json:"reason,omitempty"`   // of its drain
	Restored string `json:"restored,omitempty"` // this node is drained again
	Kept     string `json:"kept,omitempty"`     // this node stays in service: it has passed
	Released string `json:"released,omitempty"` // the reservation is deleted
}

// debts are the steps of a journal that are not undone.
type debts struct {
	reservation string // "" if there is none
	job         string
	nodes       map[string]string // the nodes in service that were drained, and the reasons
}

// readJournal applies the lines of a journal. The step of a line that a crash has cut off was not carried
// out. Of a journal with other broken lines it returns what it understands, and an error.
func readJournal(data []byte) (d debts, err error) {
	d.nodes = map[string]string{}
	number := 0
	for line := range bytes.Lines(data) {
		number++
		line = bytes.Trim(line, "\x00\n") // a crash can leave zeros
		var e entry
		bad := json.Unmarshal(line, &e)
		cut := json.NewDecoder(bytes.NewReader(line)).Decode(&entry{})
		switch {
		case bad == nil:
			d.apply(e)
		case !errors.Is(cut, io.ErrUnexpectedEOF) && !errors.Is(cut, io.EOF):
			err = errors.Join(err, fmt.Errorf("line %d of the journal: %w", number, bad))
		}
	}
	return d, err
}

func (d *debts) apply(e entry) {
	switch {
	case e.Reserve != "":
		d.reservation = e.Reserve
	case e.Job != "":
		d.job = e.Job
	case e.Resume != "":
		d.nodes[e.Resume] = e.Reason
	case e.Restored != "":
		delete(d.nodes, e.Restored)
	case e.Kept != "":
		delete(d.nodes, e.Kept)
	case e.Released != "":
		d.reservation, d.job = "", ""
	}
}

// settled reports whether nothing has to be undone.
func (d *debts) settled() bool { return d.reservation == "" && len(d.nodes) == 0 }

// keeper does the steps of a maintenance at Slurm.
type keeper interface {
	reserve(name string, nodes []string, drained bool) error
	release(name string) error // nil, too, if there is none
	resume(node string) error
	// drain drains a node with a reason. If it leaves the node in another state it returns that state instead.
	drain(node, reason string) (instead string, err error)
	drained() (reasons map[string]string, err error)
	cancel(job string) error // and waits for its end
}

// maintenance tests drained nodes in a reservation. The order is always: reservation, resume, test,
// drain, delete the reservation. A node in the reservation accepts only the jobs of the sweep.
type maintenance struct {
	debts
	keeper  keeper
	write   func(entry) error // on the disk
	instead map[string]string // the states of nodes that are neither in service nor drained as before
}

func (m *maintenance) note(e entry) error {
	if err := m.write(e); err != nil {
		return fmt.Errorf("write the journal: %w", err)
	}
	m.apply(e)
	return nil
}

// begin reserves the nodes and puts the drained ones into service. drained has the reasons.
func (m *maintenance) begin(name string, nodes []string, drained map[string]string) error {
	if err := m.note(entry{Reserve: name}); err != nil {
		return err
	}
	if err := m.keeper.reserve(name, nodes, len(drained) > 0); err != nil {
		return errors.Join(err, m.end(nil))
	}
	for _, node := range slices.Sorted(maps.Keys(drained)) {
		if err := m.note(entry{Resume: node, Reason: drained[node]}); err != nil {
			return errors.Join(err, m.end(nil))
		}
		if err := m.keeper.resume(node); err != nil {
			return errors.Join(err, m.end(nil))
		}
	}
	return nil
}

// end drains the nodes again, except those to keep in service, and then deletes the reservation. If a
// node cannot be drained, the reservation stays. The drain by someone else of a node to keep stays, too.
func (m *maintenance) end(keep map[string]bool) error {
	var err error
	if m.job != "" {
		err = m.keeper.cancel(m.job) // a job that remains does not keep a node from being drained
	}
	var drained map[string]string
	if slices.Contains(slices.Collect(maps.Values(keep)), true) {
		var bad error
		drained, bad = m.keeper.drained()
		err = errors.Join(err, bad)
	}
	failed, silent := false, false
	if m.instead == nil { // a failed begin has ended already
		m.instead = map[string]string{}
	}
	for _, node := range slices.Sorted(maps.Keys(m.nodes)) {
		if keep[node] {
			if reason, is := drained[node]; is {
				m.instead[node] = "drained meanwhile: " + reason
			}
			err = errors.Join(err, m.note(entry{Kept: node}))
			continue
		}
		if silent {
			continue
		}
		instead, bad := m.keeper.drain(node, m.nodes[node])
		if bad != nil {
			err, failed, silent = errors.Join(err, bad), true, errors.Is(bad, errSilent)
			continue
		}
		if instead != "" {
			m.instead[node] = instead
		}
		err = errors.Join(err, m.note(entry{Restored: node}))
	}
	if failed {
		return fmt.Errorf("%w; reservation %s stays: nhc-gpu sweep --repair drains the nodes again", err, m.reservation)
	}
	if m.reservation == "" {
		return err
	}
	name := m.reservation
	if bad := m.keeper.release(name); bad != nil {
		return errors.Join(err, bad)
	}
	return errors.Join(err, m.note(entry{Released: name}))
}
