package main

import "github.com/nhc-gpu/nhc-gpu/checks"

// startAhead starts the workers that the run before this one has needed, with the same
// command line.
func (r *oneRun) startAhead() {
	if r.opts.eval == "" {
		r.pool.StartAsBefore(r.argv)
	}
}

func (r *oneRun) rememberLanes(lanes []checks.Lane) {
	if r.opts.eval == "" {
		r.pool.RememberLanes(r.kind(), r.argv, lanes)
	}
}

// kind is what runs of this node have in common that need the same workers.
func (r *oneRun) kind() string {
	if r.background {
		return r.node.role.String() + "-background"
	}
	return r.node.role.String()
}
