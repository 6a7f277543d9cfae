package active

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// ClearActive discards the stored results of one active test, or of all. It returns the names of
// the tests that had one. A [probe.SpareError] is not a failure.
func ClearActive(env *checks.Env, args []string, _ string) (cleared []string, err error) {
	tests := activeNames()
	if len(args) > 1 {
		return nil, fmt.Errorf("clear --active %s: want one test, like check_gpu_gemm, or none for all", strings.Join(args, " "))
	}
	if len(args) == 1 {
		name := "check_" + strings.TrimPrefix(args[0], "check_")
		if !slices.Contains(tests, name) {
			return nil, fmt.Errorf("clear --active %s: unknown active test, want one of %s", args[0], strings.Join(tests, ", "))
		}
		tests = []string{name}
	}
	for _, name := range tests {
		file, _ := readStamps(env, name) // an unreadable file has no results
		if len(file.Stamps) == 0 {
			continue
		}
		clear(file.Stamps)
		cleared = append(cleared, name)
		if err = env.Host.Keep(stampName(name), file); err != nil {
			return cleared, err
		}
	}
	return cleared, nil
}

// OfThisNode reports whether a stored result is from the node in its present state.
func OfThisNode(env *checks.Env) bool {
	now, err := describeNode(env)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(activeNames(), func(name string) bool {
		file, _ := readStamps(env, name)
		for _, s := range file.Stamps {
			if s.isCurrent(&now) {
				return true
			}
		}
		return false
	})
}

func activeNames() []string {
	return slices.DeleteFunc(checks.Names(), func(name string) bool {
		info, _ := checks.Lookup(name)
		return !info.Active
	})
}
