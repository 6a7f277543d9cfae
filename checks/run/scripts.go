package run

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// Overrides are the checks of this program that scripts define anew, as far as
// their text tells: a file of LBNL NHC's takes back what those before it have
// defined of its own functions.
func Overrides(scripts []wire.Script) map[string]bool {
	over := map[string]bool{}
	for _, s := range scripts {
		for _, name := range s.Functions {
			if _, ok := checks.Lookup(name); !ok {
				continue
			}
			if over[name] = true; s.Stock {
				delete(over, name)
			}
		}
	}
	return over
}

// Dropped is a function of a script that is never called, since a file after it
// defines it, too.
type Dropped struct {
	Function string
	From     string      // the script
	By       wire.Script // the file after it
}

// DroppedFunctions returns them in the order of their scripts.
func DroppedFunctions(scripts []wire.Script) (list []Dropped) {
	for i, s := range scripts {
		if s.Stock {
			continue
		}
		for _, name := range wire.Unique(slices.Clone(s.Functions)) {
			for _, later := range slices.Backward(scripts[i+1:]) {
				if slices.Contains(later.Functions, name) {
					list = append(list, Dropped{name, s.Path, later})
					break
				}
			}
		}
	}
	return list
}

// loadWords returns what __nhc_load in prelude.sh is given: "site FILE" for each
// script of the site, and for a file of LBNL NHC's behind one "own TEXT", which
// brings back the functions that it defines.
func loadWords(scripts []wire.Script) (words []string) {
	texts := providedFunctions()
	for _, s := range scripts {
		if !s.Stock {
			words = append(words, "site", s.Path)
			continue
		}
		var text strings.Builder
		for _, name := range s.Functions {
			if _, native := checks.Lookup(name); native {
				text.WriteString("unset -f " + name + "\n") // __nhc_load defines it in the end
			} else {
				text.WriteString(texts[name])
			}
		}
		if len(words) > 0 {
			words = append(words, "own", text.String())
		}
	}
	return words
}
