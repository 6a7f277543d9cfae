package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// CheckName returns the name of a check with its prefix, which a table of nhc.toml can omit.
func CheckName(name string) string { return "check_" + strings.TrimPrefix(name, "check_") }

// OwnCheck reports whether a step is a check that LBNL NHC does not have. With -a the node is then
// marked at the end of the run, for the worst failure; LBNL NHC marks it at the first failure,
// immediately.
func OwnCheck(s plan.Step) bool { return s.Kind == plan.Native && !checks.OfLBNL(CheckName(s.Name)) }

// TableText returns the parameters of a table of nhc.toml on one line.
func TableText(s *plan.Step) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(s.Table)) {
		words = append(words, fmt.Sprintf("%s=%v", k, s.Table[k]))
	}
	return strings.Join(words, " ")
}
