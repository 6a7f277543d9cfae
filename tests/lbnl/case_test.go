package lbnl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// recorded is a case: a scene for the program, and the expected outcome.
type recorded struct {
	Group string   `json:"-"` // the name of the case's file
	ID    string   `json:"id"`
	Desc  string   `json:"desc"`
	Tags  []string `json:"tags"` // for readers: the check, "differs" and the reason of the difference
	scene
	wants
}

// scene is the node that a case creates, and the program that it runs there. Texts may contain
// {BIN}, {DIR}, {INCDIR} and {HELPERDIR}: the program, the case's own directory, that of the site
// scripts and that of the node-mark-* commands.
type scene struct {
	Host    *string           `json:"host"`    // host name; null: node01
	Conf    *string           `json:"conf"`    // text of {DIR}/etc/nhc.conf; null: there is none
	Files   []file            `json:"files"`   // created in this order, after the mounts
	Mounts  []mount           `json:"mounts"`  // created in this order
	Bind    map[string]string `json:"bind"`    // path: text mounted over that file
	Sysfs   map[string]string `json:"sysfs"`   // path below /sys/class: text; everything else there is hidden
	Links   []string          `json:"links"`   // network links to create
	Procs   []process         `json:"bg"`      // processes running before the program starts
	Listen  []listener        `json:"listen"`  // sockets, each held by its own process
	Argv    []string          `json:"argv"`    // the command line
	Env     map[string]string `json:"env"`     // the whole environment; null: PATH, HOME and LC_ALL
	Stdin   *string           `json:"stdin"`   // null: /dev/null
	Leader  *bool             `json:"leader"`  // the program leads a session; null: it does
	Settle  *float64          `json:"settle"`  // seconds that its children get to end; null: 0.4
	Collect []string          `json:"collect"` // files whose text is part of the outcome
}

// file is a file of any type that a case needs.
type file struct {
	Path     string   `json:"path"`
	Type     string   `json:"type"` // file (the default), recorder, dir, symlink, fifo, socket, char, block
	Content  string   `json:"content"`
	Fill     int      `json:"fill"`   // bytes to allocate, instead of Content
	Target   string   `json:"target"` // of a symlink
	Mode     string   `json:"mode"`   // octal
	UID      *int     `json:"uid"`
	GID      *int     `json:"gid"`
	Major    uint32   `json:"major"`
	Minor    uint32   `json:"minor"`
	MtimeAgo *float64 `json:"mtime_ago"` // seconds
	AtimeAgo *float64 `json:"atime_ago"` // seconds
}

// mount is a file system that a case needs.
type mount struct {
	Type   string   `json:"type"`
	Source string   `json:"source"`
	Target string   `json:"target"` // created if it is missing
	Opts   string   `json:"opts"`
	Flags  []string `json:"flags"` // ro, nosuid, nodev
}

// process is a background process: a sleep, or with Args a shell that has stopped itself.
type process struct {
	Argv0    string    `json:"argv0"`
	Args     []string  `json:"args"`
	UID      int       `json:"uid"`
	Proc     *procFake `json:"proc"`
	Children []process `json:"children"`
}

// procFake replaces values of /proc/PID of a process.
type procFake struct {
	RSSKB   *int     `json:"rss_kb"`
	VSZKB   *int     `json:"vsz_kb"`
	TimeS   *int     `json:"time_s"` // CPU seconds
	PCPU    *float64 `json:"pcpu"`   // percent of a CPU over its life
	Cmdline []string `json:"cmdline"`
}

// listener is a socket and the name of the process that holds it.
type listener struct {
	Proto string `json:"proto"` // tcp, tcp6, udp, unix
	Addr  string `json:"addr"`
	Port  int    `json:"port"`
	Path  string `json:"path"`
	Argv0 string `json:"argv0"`
	UID   int    `json:"uid"` // owner of the socket
}

// wants is the outcome that a case expects.
type wants struct {
	Expect  outcome  `json:"expect"`  // of the reference
	Compare []string `json:"compare"` // keys of Expect to compare: exit, stdout, stderr, calls, files; null: all
	Norm    []rule   `json:"norm"`    // applied to the outcome, after norms

	ExpectOurs  *outcome                    `json:"expect_ours"`   // instead of Expect
	CompareOurs []string                    `json:"compare_ours"`  // instead of Compare
	NormOurs    []rule                      `json:"norm_ours"`     // applied to the expected and the actual outcome
	MatchOurs   map[string][]*regexp.Regexp `json:"match_ours"`    // key: patterns that match; "out": both streams
	NomatchOurs map[string][]*regexp.Regexp `json:"nomatch_ours"`  // key: patterns that do not
	CountOurs   map[string]map[string]int   `json:"count_ours"`    // key: text: how often it occurs
	BesideOurs  map[string]string           `json:"beside_ours"`   // key: a line besides which there must be other text
	WallMaxOurs float64                     `json:"wall_max_ours"` // seconds the program may take
}

// outcome is the behavior of a program.
type outcome struct {
	Exit   int               `json:"exit"` // 128 + N: ended by signal N
	Stdout string            `json:"stdout"`
	Stderr string            `json:"stderr"`
	Calls  []string          `json:"calls"`
	Files  map[string]string `json:"files"`  // of Collect; "<dir>" and "<ENOENT>" mean themselves
	Killed []string          `json:"killed"` // background processes that it ended; always compared
}

// rule replaces the matches of a pattern; $1 is its first group.
type rule struct {
	re *regexp.Regexp
	to string
}

// UnmarshalJSON decodes ["pattern", "replacement"].
func (r *rule) UnmarshalJSON(text []byte) error {
	var pair [2]string
	if err := json.Unmarshal(text, &pair); err != nil {
		return err
	}
	re, err := regexp.Compile(pair[0])
	*r = rule{re, pair[1]}
	return err
}

// loadCases reads every case below dir, by group.
func loadCases(dir string) ([]*recorded, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, err
	}
	var cases []*recorded
	seen := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		group := strings.TrimSuffix(filepath.Base(path), ".jsonl")
		n := 0
		for line := range bytes.Lines(text) {
			n++
			c := &recorded{Group: group}
			d := json.NewDecoder(bytes.NewReader(line))
			d.DisallowUnknownFields()
			if err := d.Decode(c); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
			if err := c.checkKeys(); err != nil {
				return nil, fmt.Errorf("%s:%d: %w", path, n, err)
			}
			if seen[c.ID] {
				return nil, fmt.Errorf("%s:%d: second case %q", path, n, c.ID)
			}
			seen[c.ID] = true
			cases = append(cases, c)
		}
	}
	return cases, nil
}

// checkKeys finds an unknown key, which would silently skip a comparison.
func (c *recorded) checkKeys() error {
	for _, key := range slices.Concat(c.Compare, c.CompareOurs) {
		if !slices.Contains([]string{"exit", "stdout", "stderr", "calls", "files"}, key) {
			return fmt.Errorf("case %q compares %q", c.ID, key)
		}
	}
	texts := slices.Concat(slices.Collect(maps.Keys(c.MatchOurs)), slices.Collect(maps.Keys(c.NomatchOurs)),
		slices.Collect(maps.Keys(c.CountOurs)), slices.Collect(maps.Keys(c.BesideOurs)))
	for _, key := range texts {
		if !slices.Contains([]string{"stdout", "stderr", "out", "calls"}, key) {
			return fmt.Errorf("case %q searches %q", c.ID, key)
		}
	}
	return nil
}
