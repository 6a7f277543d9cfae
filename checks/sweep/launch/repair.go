package launch

import (
	"errors"
	"fmt"

	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Repair undoes what sweeps have left whose launcher was killed: it cancels their jobs, drains the nodes
// again that were drained, and deletes the reservations. It leaves sweeps alone that are under way.
func Repair(o Options) error {
	list, err := List(o.State)
	if err != nil {
		return fmt.Errorf("list the sweeps: %w", err)
	}
	m := newManager(o.Settings, o.Env)
	m.log = o.Log
	for _, x := range list {
		if !x.Unsettled {
			continue
		}
		r, bad := reopen(o.State, x.ID)
		if errors.Is(bad, ErrRunning) {
			continue
		}
		if bad != nil {
			err = errors.Join(err, bad)
			continue
		}
		if bad := r.repair(m); bad != nil {
			err = errors.Join(err, fmt.Errorf("repair sweep %s: %w", x.ID, bad))
		} else if o.Log != nil {
			o.Log("sweep %s was killed: its job is cancelled, and the nodes are drained again that were", x.ID)
		}
		r.close()
	}
	return err
}

func (r *record) repair(m *manager) error {
	d, err := r.debts()
	if err != nil {
		err = fmt.Errorf("%w: see that its nodes are drained, and remove %s", err, r.dir)
	}
	if r.Meta.Own {
		if bad := m.cancelOwn(r.Meta.Job, slurm.ReservationPrefix+r.Meta.ID); bad != nil {
			return errors.Join(err, bad)
		}
		r.Meta.Own = false
		err = errors.Join(err, r.saveMeta())
	}
	left := &maintenance{debts: d, keeper: m, write: func(e entry) error { return r.appendLine(journalFile, e) }}
	return errors.Join(err, left.end(nil))
}
