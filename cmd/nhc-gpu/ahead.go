package main

import "github.com/nhc-gpu/nhc-gpu/checks"

// startAhead starts the workers that the run before this one has needed, with the same
// command line.
func (r *oneRun) startAhead() {
	if r.opts.eval == "" {
		r.Pool.StartAsBefore(r.argv)
	}
}

func (r *oneRun) rememberLanes(lanes []checks.Lane) {
	if r.opts.eval == "" {
		r.Pool.RememberLanes(r.Kind(), r.argv, lanes)
	}
}
