package active

import (
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// ClearActive is an operator's word that what active tests have found on this node is no
// longer so: one of them, or all. It returns those that had a result. A
// [probe.SpareError] is no failure.
func ClearActive(env *checks.Env, words []string, _ string) (cleared []string, err error) {
	tests := activeNames()
	if len(words) > 1 {
		return nil, fmt.Errorf("clear --active %s: want one test, like check_gpu_gemm, or none for all", strings.Join(words, " "))
	}
	if len(words) == 1 {
		name := "check_" + strings.TrimPrefix(words[0], "check_")
		if !slices.Contains(tests, name) {
			return nil, fmt.Errorf("clear --active %s: no such active test: there are %s", words[0], strings.Join(tests, ", "))
		}
		tests = []string{name}
	}
	for _, name := range tests {
		file, _ := readStamps(env, name) // one that is broken holds nothing
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

// OfThisNode says whether a result that is kept is about the node as it is.
func OfThisNode(env *checks.Env) bool {
	now, err := holdsFor(env)
	if err != nil {
		return false
	}
	return slices.ContainsFunc(activeNames(), func(name string) bool {
		file, _ := readStamps(env, name)
		for _, s := range file.Stamps {
			if s.about(&now) {
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
