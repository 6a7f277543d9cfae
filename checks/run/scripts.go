package run

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// UnauthUsers is the check that lets the site decide, by JOBUSERS or by functions, who may have processes: the shell
// then asks the functions, and runs it.
const UnauthUsers = "check_ps_unauth_users"

// Overrides returns the checks of this program that scripts redefine, or that the shell must run because of
// them, as far as their text shows. A file of LBNL NHC restores its own functions that earlier files have redefined.
func Overrides(scripts []wire.Script) map[string]bool {
	ours := map[string]bool{} // whether the last definition of a function is the site's
	for _, s := range scripts {
		for _, name := range s.Functions {
			ours[name] = !s.Stock
		}
	}
	over := map[string]bool{}
	for name, is := range ours {
		if name == "nhc_job_find_users" || name == "nhc_job_user_auth" {
			name = UnauthUsers
		}
		if _, ok := checks.Lookup(name); ok && is {
			over[name] = true
		}
	}
	return over
}

// Dropped is a function of a script that is never called, because a later file defines it, too.
type Dropped struct {
	Function string
	From     string      // the script
	By       wire.Script // the later file
}

// DroppedFunctions returns the dropped functions in the order of their scripts.
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

// buildLoadArgs returns the arguments of __nhc_load in prelude.sh: "site FILE" for each script of the
// site, and "own TEXT" for a file of LBNL NHC after one. The text restores the functions that the
// file defines.
func buildLoadArgs(scripts []wire.Script) (words []string) {
	texts := listProvided()
	for _, s := range scripts {
		if !s.Stock {
			words = append(words, "site", s.Path)
			continue
		}
		var text strings.Builder
		for _, name := range s.Functions {
			if _, native := checks.Lookup(name); native {
				text.WriteString("__nhc_native " + name + "\n")
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
