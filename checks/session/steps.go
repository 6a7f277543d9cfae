package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
)

// OwnCheck reports whether a step is a check that LBNL NHC does not have. With -a the node is then
// marked at the end of the run, for the worst failure; LBNL NHC marks it at the first failure,
// immediately.
func OwnCheck(s plan.Step) bool {
	return s.Kind == plan.Native && !checks.OfLBNL(checks.FullName(s.Name))
}

// TableText returns the parameters of a table of nhc.toml on one line.
func TableText(s *plan.Step) string {
	var words []string
	for _, k := range slices.Sorted(maps.Keys(s.Table)) {
		words = append(words, fmt.Sprintf("%s=%v", k, s.Table[k]))
	}
	return strings.Join(words, " ")
}
