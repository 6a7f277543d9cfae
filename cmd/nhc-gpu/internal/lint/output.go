package lint

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
)

// lintOutputs judges the files and the program of [output] on this node.
func lintOutputs(l *linter) {
	if l.f.Config == nil || l.f.Set.Get("HOSTROOT") != "" {
		return
	}
	o := l.f.Config.Output
	if o.JSONL != "" {
		lintOutputFile(l, o.JSONL, false)
	}
	if o.Textfile != "" {
		lintOutputFile(l, o.Textfile, true)
	}
	if len(o.Command) == 0 {
		return
	}
	program := o.Command[0]
	file, err := l.call(wire.OpRead, program).File("")
	switch {
	case err != nil: // it may not answer now
	case file.Missing:
		warnOfTable(l, l.f.TablesFile(), program, "no such program", "the command does not run", "the path of a program")
	case !file.Mode.IsRegular() || file.Mode.Perm()&0o111 == 0:
		warnOfTable(l, l.f.TablesFile(), program, "not an executable file", "the command does not run", "chmod 755 "+program)
	case file.Mode.Perm()&0o002 != 0 || file.UID != 0:
		warnOfTable(l, l.f.TablesFile(), program, fmt.Sprintf("owned by user %d, mode %04o", file.UID, file.Mode.Perm()), "another user decides what root runs", "chown root "+program+"; chmod 755 "+program)
	}
}

// lintOutputFile judges a file that runs write; others says that another user must be able to read it.
func lintOutputFile(l *linter, path string, others bool) {
	dir := filepath.Dir(path)
	file, err := l.call(wire.OpRead, dir).File("")
	switch {
	case err != nil:
		return
	case file.Missing:
		warnOfTable(l, l.f.TablesFile(), path, "there is no directory "+dir, "each run warns, and writes nothing there", "mkdir "+dir)
		return
	case !file.Mode.IsDir():
		warnOfTable(l, l.f.TablesFile(), path, dir+" is not a directory", "each run warns, and writes nothing there", "a path in a directory")
		return
	case others && file.UID == 0 && file.Mode.Perm()&0o055 == 0:
		warnOfTable(l, l.f.TablesFile(), path, fmt.Sprintf("only root can read the directory %s (mode %04o)", dir, file.Mode.Perm()), "node_exporter finds no metrics", "chmod 755 "+dir)
	}
	if file, err := l.call(wire.OpRead, path).File(""); err == nil && !file.Missing && !file.Mode.IsRegular() {
		warnOfTable(l, l.f.TablesFile(), path, "not a regular file", "each run warns, or waits for a reader", "the path of a file")
	}
}

// warnOfTable adds a warning about a value of nhc.toml.
func warnOfTable(l *linter, path, value, text, now, fix string) {
	f := finding{File: path, Severity: warning, Word: value, Text: text, Now: now, Fix: fix}
	for i, line := range strings.Split(string(l.texts[f.File]), "\n") {
		if strings.Contains(line, strconv.Quote(value)) {
			f.Line = i + 1
			break
		}
	}
	l.locate(&f)
	l.add(f)
}
