package run

import (
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"

	_ "embed"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

//go:embed prelude.sh
var prelude string

//go:embed preludechecks.sh
var preludeChecks string

// library has the functions for the scripts of a site.
//
//go:embed library.sh
var library string

//go:embed libfacts.sh
var libfacts string

// libraryName finds the functions of the library that a site may call.
var libraryName = checks.Lazily(`(?m)^([a-z]\w+)\(\)`)

// ownFunctions returns the internal functions of the prelude.
var ownFunctions = sync.OnceValue(func() (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^(__nhc_\w+)\(\)`).FindAllStringSubmatch(prelude+preludeChecks, -1) {
		names = append(names, m[1])
	}
	return names
})

// runLine is sourced to run one check line. The loop around eval catches "break" and "continue",
// and the sourcing catches "return". $CHECK is unquoted as in LBNL NHC: consecutive blanks become
// one, also inside quotes.
const runLine = "__nhc_began=1\nfor __nhc_once in 1; do \\builtin eval $CHECK; done\n"

// LackedFunctions returns the functions of LBNL NHC that scripts do not find here, sorted.
func LackedFunctions() []string {
	provided := listProvided()
	return slices.DeleteFunc(wire.FileTable(wire.LBNLFiles).Functions(), func(name string) bool {
		_, native := checks.Lookup(name)
		return native || provided[name] != ""
	})
}

// Provides reports whether lines and scripts find a function of that name that is not a check.
func Provides(function string) bool { return listProvided()[function] != "" }

// listProvided returns the functions that bash gets, and their text. It relies on their
// layout: "NAME() {" begins a line, and "}" alone ends it.
func listProvided() map[string]string {
	texts := map[string]string{}
	var name string
	for line := range strings.Lines(prelude + preludeChecks + library + libfacts) {
		if name != "" {
			texts[name] += line
			if line == "}\n" {
				name = ""
			}
			continue
		}
		head, body, ok := strings.Cut(line, "() {")
		if !ok || head == "" || strings.Trim(head, "abcdefghijklmnopqrstuvwxyz_") != "" {
			continue
		}
		texts[head] = line
		if body == "\n" {
			name = head
		}
	}
	return texts
}
