package open

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// builtins are the commands that bash runs itself.
var builtins = strings.Fields(`: . [ alias bind break builtin caller cd command complete continue declare dirs disown
	echo enable eval exec exit export false getopts hash jobs kill let local mapfile popd printf pushd pwd read readarray
	readonly return set shift shopt source suspend test times trap true type typeset ulimit umask unalias unset wait`)

// LacksCommand returns the names of checks and functions, if a line of bash cannot find a command
// of that name, and nil if it can. newPath says that a line has set PATH. sure is false if
// the command may exist all the same: a script of the site reads other files.
func (f *Files) LacksCommand(name string, newPath bool) (known []string, sure bool) {
	if slices.Contains(builtins, name) || run.Provides(name) {
		return nil, false
	}
	known = checks.Names()
	sure = !newPath || strings.HasPrefix(name, "check_")
	for _, s := range f.Bash.Scripts {
		if s.Stock || f.Bash.Unloaded != nil {
			continue
		}
		known = append(known, s.Functions...)
		sure = sure && !s.Sources
	}
	if slices.Contains(known, name) || f.isProgram(name) {
		return nil, false
	}
	return known, sure
}

// isProgram reports whether a name leads to a file that can be executed.
func (f *Files) isProgram(name string) bool {
	paths := []string{name}
	if !strings.Contains(name, "/") {
		paths = nil
		for _, dir := range filepath.SplitList(f.Set.Get("PATH")) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	resp, err := f.Pool.Call(f.Ctx, checks.Local, &wire.Request{Op: wire.OpFind, Args: paths, Line: "find " + name}, f.Budget.Reading(time.Now())).Answer()
	return err != nil || resp.Status > 0 // a directory that does not answer may have it
}
