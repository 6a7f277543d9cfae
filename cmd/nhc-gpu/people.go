package main

import (
	"maps"

	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// Runs that a person has asked for.

// peopleRun makes a run for a person.
func peopleRun(opts *options) (*oneRun, error) {
	r := newRun([]string{"nhc-gpu"}, opts)
	_ = r.OpenState("")
	r.strict, r.whole = true, opts.role == slurm.Manual
	r.Set.Hold = true
	if r.job != nil { // there is none: any GPU may be its
		r.job = anyJob()
	}
	for _, a := range opts.set {
		r.Set.Put(a.name, a.value, false)
	}
	for _, w := range opts.words {
		if err := r.Set.Word(w); err != nil {
			r.close()
			return nil, err
		}
	}
	r.Set.Preset("nhc-gpu")
	return r, nil
}

// anyJob stands for jobs of which nothing is known.
func anyJob() *around {
	return &around{job: slurm.Job{Share: slurm.AllGPUs}, every: true}
}

// quiet keeps a run for a person from marking the node and from logging.
func (r *oneRun) quiet() {
	r.Set.Finalize()
	maps.Copy(r.Set.Vars, map[string]string{"LOGFILE": "-", "MARK_OFFLINE": "0", "NHC_CHECK_ALL": "1", "SILENT": "1", "VERBOSE": "0"})
	r.setBudget()
	r.fold.held = true // whatever a line sets
	r.fold.begin(r.Set, false, false)
}
