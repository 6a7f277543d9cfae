package main

import (
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/slurm"
)

// A crash around a job must not drain the node, wherever the option of the role stands; a
// person's command must fail.
func TestRoleAfterACrash(t *testing.T) {
	t.Parallel()
	for words, want := range map[string]slurm.Role{
		"/usr/sbin/nhc-gpu --prolog -a": slurm.Prolog,
		"nhc-gpu -Z A=b --epilog":       slurm.Epilog,
		"nhc-gpu A=b --prolog":          slurm.Prolog,
		"nhc-gpu --prolog --check":      slurm.Manual,
		"nhc-gpu plan --prolog":         slurm.Manual,
		"nhc -a --prolog":               slurm.Manual,
		"nhc-gpu":                       slurm.Manual,
	} {
		if got := aroundArgs(strings.Fields(words)); got != want {
			t.Errorf("%s: %v, want %v", words, got, want)
		}
	}
}
