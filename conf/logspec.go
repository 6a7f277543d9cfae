package conf

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// ErrNotRedirection is the error for a LOGFILE with a word that is not a redirection; LBNL NHC
// would run it as a command.
var ErrNotRedirection = errors.New("not a redirection")

// LogSpec is a parsed LOGFILE.
type LogSpec struct {
	None      bool       // "-": no redirection
	Redirects []Redirect // in order
}

// Redirect is one redirection of output: to a file, or to the target of another
// descriptor.
type Redirect struct {
	Fd     int
	Path   string // "" to duplicate DupOf
	Append bool
	DupOf  int
}

// LogTarget is the final target of a descriptor.
type LogTarget struct {
	Path   string // "" for an original descriptor
	Append bool
	Fd     int // the original descriptor (1 or 2) if Path is ""
	// Opened is the index of the redirection that opens Path, -1 without one:
	// two targets with the same one share the open file.
	Opened int
}

// ParseLog parses the value of LOGFILE: "-", a path that begins with / and means
// ">>path 2>&1", or redirections in shell syntax with quotes and variables:
// > >> >| with or without a descriptor, &> &>> >&file, and n>&m.
func ParseLog(spec string, vars func(string) string) (LogSpec, error) {
	if spec == "-" {
		return LogSpec{None: true}, nil
	}
	text := spec
	if strings.HasPrefix(spec, "/") {
		text = ">>" + spec + " 2>&1"
	}
	tree, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return LogSpec{}, fmt.Errorf("log %q: %w", spec, err)
	}
	var l LogSpec
	for _, st := range tree.Stmts {
		if st.Cmd != nil || st.Negated || st.Background || st.Coprocess || len(tree.Stmts) > 1 {
			return LogSpec{}, fmt.Errorf("log %q: %w, want >>file, 2>&1 or the like", spec, ErrNotRedirection)
		}
		for _, r := range st.Redirs {
			if err := l.add(r, vars); err != nil {
				return LogSpec{}, fmt.Errorf("log %q: %w", spec, err)
			}
		}
	}
	return l, nil
}

// add applies one redirection.
func (l *LogSpec) add(r *syntax.Redirect, vars func(string) string) error {
	fd := 1
	if r.N != nil {
		n, err := strconv.Atoi(r.N.Value)
		if err != nil || n < 1 || n > 9 {
			return fmt.Errorf("descriptor %s, want 1 to 9", r.N.Value)
		}
		fd = n
	}
	word, err := words{lookup: func(name string) (string, bool) { v := vars(name); return v, v != "" }}.expand(r.Word)
	if err != nil {
		return fmt.Errorf("file name after %s: %w, want text, quotes and variables", r.Op, err)
	}
	if word == "" {
		return fmt.Errorf("no file name after %s", r.Op)
	}
	switch r.Op {
	case syntax.RdrOut, syntax.RdrClob:
		l.Redirects = append(l.Redirects, Redirect{Fd: fd, Path: word})
	case syntax.AppOut:
		l.Redirects = append(l.Redirects, Redirect{Fd: fd, Path: word, Append: true})
	case syntax.RdrAll, syntax.AppAll:
		l.both(word, r.Op == syntax.AppAll)
	case syntax.DplOut:
		of, err := strconv.Atoi(word)
		switch {
		case err != nil && r.N == nil && word != "-": // >&file
			l.both(word, false)
		case err != nil || !l.isOpen(of):
			return fmt.Errorf("%d>&%s: want the number of an open descriptor", fd, word)
		default:
			l.Redirects = append(l.Redirects, Redirect{Fd: fd, DupOf: of})
		}
	default:
		return fmt.Errorf("redirection %s, want one of output to a file or a descriptor", r.Op)
	}
	return nil
}

// both redirects standard output and standard error to one open file.
func (l *LogSpec) both(path string, appends bool) {
	l.Redirects = append(l.Redirects, Redirect{Fd: 1, Path: path, Append: appends}, Redirect{Fd: 2, DupOf: 1})
}

func (l *LogSpec) isOpen(fd int) bool {
	return fd == 1 || fd == 2 || slices.ContainsFunc(l.Redirects, func(r Redirect) bool { return r.Fd == fd })
}

// Stdout returns the target of standard output.
func (l LogSpec) Stdout() LogTarget { return l.target(1) }

// Stderr returns the target of standard error.
func (l LogSpec) Stderr() LogTarget { return l.target(2) }

func (l LogSpec) target(fd int) LogTarget {
	now := map[int]LogTarget{1: {Fd: 1, Opened: -1}, 2: {Fd: 2, Opened: -1}}
	for i, r := range l.Redirects {
		if r.Path == "" {
			now[r.Fd] = now[r.DupOf]
		} else {
			now[r.Fd] = LogTarget{Path: r.Path, Append: r.Append, Opened: i}
		}
	}
	return now[fd]
}
