package all

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// actingCalls lists the functions of checks/probe through which a check changes the node.
var actingCalls = []string{"EndJobProcess", "Kill", "MakeDir", "RemoveIPC", "RemoveShm", "Renice", "SetPersistence", "Spawn"}

// observingRuns lists the functions of this package that run a program to inspect the node.
// Every other function that runs one must call [checks.Env.Acts].
var observingRuns = map[string]string{
	"cmdOutput.examine": "check_cmd_output: the command is the check",
	"cmdStatus.Run":     "check_cmd_status: the command is the check",
	"netPing.Run":       "check_net_ping: the command is the check",
	"testInShell":       "test(1)",
	"Env.runExternal":   "a matcher of the site",
	"serviceRun.status": "service NAME status",
	"Env.RunTool":       "a vendor's tool that reads",
	"jobsOf":            "squeue",
	"jobUsers.askSlurm": "squeue",
	"runProgram":        "a test of nccl-tests",
}

// changing lists the system calls and standard library functions that change something, as
// written in checks/probe.
var changing = []string{
	"os.Chmod", "os.Chown", "os.Create", "os.CreateTemp", "os.FindProcess", "os.Link", "os.Mkdir", "os.MkdirAll", "os.MkdirTemp", "os.O_CREATE", "os.Remove",
	"os.RemoveAll", "os.Rename", "os.StartProcess", "os.Symlink", "os.Truncate", "os.WriteFile", "exec.Command", "exec.CommandContext", "syscall.Kill",
	"unix.Chmod", "unix.Fchmod", "unix.Kill", "unix.Mkdir", "unix.Mkdirat", "unix.Mount", "unix.O_CREAT", "unix.O_TMPFILE", "unix.PidfdSendSignal", "unix.Rename", "unix.Renameat", "unix.Renameat2",
	"unix.SYS_MSGCTL", "unix.SYS_SEMCTL", "unix.SYS_SHMCTL", "unix.Setpriority", "unix.Tgkill", "unix.Umount", "unix.Unlink", "unix.Unlinkat", "unix.Unmount",
}

// knownChanges lists the functions of checks/probe that change something: actions, which are in
// [actingCalls] or run through one, and functions that are not actions.
var knownChanges = map[string]string{
	"MakeDir": "action", "RemoveShm": "action", "Renice": "action", "removeIPC": "action", "Send": "action", "signal": "ends a command that this process has started",
	"Forget": "our own records", "Keep": "our own evidence", "removeAll": "our own records", "settle": "our own records", "appendFile": "our own journal", "keepIn": "our own records", "lockFile": "our own lock", "makeRoom": "our own evidence", "dropJobs": "our own evidence",
	"killTests": "ends perftest programs that this process has started", "start": "ends a command that this process has started",
	"createNameless": "check_disk_write: a file without a name", "createUnlinked": "check_disk_write: a file that loses its name at once",
}

// TestEveryActionAsks parses the source of the checks: before each call that changes the node,
// the same function must call Acts.
func TestEveryActionAsks(t *testing.T) {
	t.Parallel()
	used, running := map[string]bool{}, map[string]bool{}
	eachFunction(t, families(t), func(fn *ast.FuncDecl, pos func(ast.Node) token.Position) {
		var asked token.Pos // position of the first call of Acts
		ast.Inspect(fn, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr: // remove: func() error {...}: its caller calls Acts
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "remove" {
					ast.Inspect(n.Value, func(c ast.Node) bool {
						name, _ := methodOf(c)
						used[name] = true
						return true
					})
					return false
				}
			case *ast.IfStmt:
				ast.Inspect(n.Cond, func(c ast.Node) bool {
					if name, _ := methodOf(c); name == "Acts" && asked == token.NoPos {
						asked = c.Pos()
					}
					return true
				})
			case *ast.CallExpr:
				name, on := methodOf(n)
				acting := onProbe(on) && slices.Contains(actingCalls, name) || name == "remove"
				runs := onProbe(on) && (name == "Run" || name == "RunOnce") && observingRuns[fullName(fn)] == ""
				if onProbe(on) {
					used[name] = true
					if name == "Run" || name == "RunOnce" {
						running[fullName(fn)] = true
					}
				}
				if (acting || runs) && (asked == token.NoPos || n.Pos() < asked) {
					t.Errorf("%s: %s calls %s without asking Acts", pos(n), fullName(fn), name)
				}
			}
			return true
		})
	})
	for name := range observingRuns {
		if !running[name] {
			t.Errorf("%s runs no program: the list is out of date", name)
		}
	}
	for _, name := range actingCalls {
		if !used[name] {
			t.Errorf("no check calls %s: the list is out of date", name)
		}
	}
}

// TestMemoryAsks parses the source of the checks: a check must keep data for its next run
// through [checks.Env.Remember]. Results of active tests, an operator's clear and the GPU
// resets of a remedy are exceptions: any run may write them.
func TestMemoryAsks(t *testing.T) {
	t.Parallel()
	eachFunction(t, families(t), func(fn *ast.FuncDecl, pos func(ast.Node) token.Position) {
		ast.Inspect(fn, func(n ast.Node) bool {
			name, on := methodOf(n)
			if !onProbe(on) || name != "Keep" && name != "Recall" {
				return true
			}
			dir, file := filepath.Split(pos(n).Filename)
			if file != "act.go" && dir != "../active/" && !strings.Contains(file, "clear") && file != "reset.go" {
				t.Errorf("%s: %s calls Host.%s: want Env.Remember, Env.Recall", pos(n), fullName(fn), name)
			}
			return true
		})
	})
}

// handMade lists the functions that write the two blanks after a check's name themselves.
var handMade = map[string]string{
	"Finding.Phrase": "the builder",
	"Finding.Text":   "the builder's inverse",
	"WrongOption":    "LBNL NHC's texts of wrong options",
}

// TestTextsAreBuilt parses the source of the checks: only [checks.Finding.Phrase] and its callers
// may begin a message with the name of the check. checks/lbnl is excluded: its texts are those
// of LBNL NHC, and some have several lines.
func TestTextsAreBuilt(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	own := slices.DeleteFunc(families(t), func(dir string) bool { return dir == "../lbnl" })
	eachFunction(t, own, func(fn *ast.FuncDecl, pos func(ast.Node) token.Position) {
		ast.Inspect(fn, func(n ast.Node) bool {
			text, ok := n.(*ast.BasicLit)
			if !ok || text.Kind != token.STRING || !strings.Contains(text.Value, ":  ") {
				return true
			}
			used[fullName(fn)] = true
			if handMade[fullName(fn)] == "" {
				t.Errorf("%s: %s composes %s by hand: want Finding.Report, Describe or Phrase", pos(n), fullName(fn), text.Value)
			}
			return true
		})
	})
	for name := range handMade {
		if !used[name] {
			t.Errorf("%s composes no text: the list is out of date", name)
		}
	}
}

// fullName returns the name of a function, with its receiver type.
func fullName(fn *ast.FuncDecl) string {
	if fn.Recv == nil {
		return fn.Name.Name
	}
	of := fn.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	if id, ok := of.(*ast.Ident); ok {
		return id.Name + "." + fn.Name.Name
	}
	return fn.Name.Name
}

// methodOf returns the method that an expression calls, and the field or variable on
// which it is called.
func methodOf(n ast.Node) (name, on string) {
	call, ok := n.(*ast.CallExpr)
	if !ok {
		return "", ""
	}
	sel, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return "", ""
	}
	switch x := sel.X.(type) {
	case *ast.SelectorExpr:
		on = x.Sel.Name
	case *ast.Ident:
		on = x.Name
	}
	return sel.Sel.Name, on
}

// TestEveryChangeIsKnown rejects a function of checks/probe that changes something and is not
// listed: the list states whether it is an action.
func TestEveryChangeIsKnown(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	dirs, err := probes()
	if err != nil {
		t.Fatal(err)
	}
	eachFunction(t, dirs, func(fn *ast.FuncDecl, pos func(ast.Node) token.Position) {
		ast.Inspect(fn, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && slices.Contains(changing, x.Name+"."+sel.Sel.Name) {
				seen[fn.Name.Name] = true
				if knownChanges[fn.Name.Name] == "" {
					t.Errorf("%s: %s changes something (%s.%s): say what in knownChanges", pos(n), fn.Name.Name, x.Name, sel.Sel.Name)
				}
			}
			return true
		})
	})
	for name := range knownChanges {
		if !seen[name] {
			t.Errorf("%s changes nothing: the list is out of date", name)
		}
	}
}

// probes lists the directories of checks/probe.
var probes = sync.OnceValues(func() (dirs []string, err error) {
	entries, err := os.ReadDir("../probe")
	dirs = []string{"../probe"}
	for _, e := range entries {
		if e.IsDir() && e.Name() != "testdata" && e.Name() != "probetest" {
			dirs = append(dirs, filepath.Join("../probe", e.Name()))
		}
	}
	return dirs, err
})

// onProbe reports whether a call is one of checks/probe, by the text before its name.
func onProbe(name string) bool {
	dirs, _ := probes()
	return name == "Host" || slices.ContainsFunc(dirs, func(dir string) bool { return filepath.Base(dir) == name })
}

// families lists the directories of the core and of all checks.
func families(t *testing.T) []string {
	t.Helper()
	dirs := []string{"..", "../gpustate"}
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		if dir := "../" + path.Base(reflect.TypeOf(info.New()).Elem().PkgPath()); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// eachFunction calls f for every function in the source of the directories, except tests.
func eachFunction(t *testing.T, dirs []string, f func(fn *ast.FuncDecl, pos func(ast.Node) token.Position)) {
	t.Helper()
	files := token.NewFileSet()
	for _, dir := range dirs {
		sources, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(sources) == 0 {
			t.Fatalf("no source in %s: %v", dir, err)
		}
		for _, source := range sources {
			if strings.HasSuffix(source, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(files, source, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, decl := range file.Decls {
				if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
					f(fn, func(n ast.Node) token.Position { return files.Position(n.Pos()) })
				}
			}
		}
	}
}
