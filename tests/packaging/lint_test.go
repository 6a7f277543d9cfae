package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
	"github.com/nhc-gpu/nhc-gpu/tests/tier"
)

// lintian reports nothing but the tags of rpm/lintian.tags, and each of those.
func TestLintian(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "lintian")
	k := makePackages(t)
	out, _ := exec.Command("lintian", "--allow-root", k.deb(t, k.dir, program), k.deb(t, k.dir, compat)).Output()
	tags := regexp.MustCompile(`(?m)^[EW]: \S+: (\S+)`).FindAllStringSubmatch(string(out), -1)
	list, err := os.ReadFile(filepath.Join(root, "rpm/lintian.tags"))
	if err != nil {
		t.Fatal(err)
	}
	sameFindings(t, tags, strings.Fields(regexp.MustCompile(`(?m)^#.*`).ReplaceAllString(string(list), "")))
}

// rpmlint reports nothing but the filters of rpm/rpmlint.toml, and each of those.
func TestRPMLint(t *testing.T) {
	tier.All(t)
	t.Parallel()
	need.Program(t, "rpmlint")
	k := makePackages(t)
	text, err := os.ReadFile(filepath.Join(root, "rpm/rpmlint.toml"))
	if err != nil {
		t.Fatal(err)
	}
	settings, list, _ := strings.Cut(string(text), "Filters = ")
	config := filepath.Join(t.TempDir(), "rpmlint.toml")
	if err := os.WriteFile(config, []byte(settings), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command("rpmlint", "-c", config, k.rpm(t, k.dir, program), k.rpm(t, k.dir, compat)).Output()
	findings := regexp.MustCompile(`(?m)^\S+: [EW]: (dangerous-command\S* (?:cp|rm)|\S+)`).FindAllStringSubmatch(string(out), -1)
	var filters []string
	for _, m := range regexp.MustCompile(`(?m)^ *"(.*)",$`).FindAllStringSubmatch(list, -1) {
		filters = append(filters, m[1])
	}
	sameFindings(t, findings, filters)
}

// sameFindings compares the findings of a linter with the accepted ones.
func sameFindings(t *testing.T, findings [][]string, accepted []string) {
	t.Helper()
	unused := map[string]bool{}
	for _, a := range accepted {
		unused[a] = true
	}
	if len(unused) == 0 {
		t.Error("the list of accepted findings is empty")
	}
	for _, f := range findings {
		if _, ok := unused[f[1]]; !ok {
			t.Error(f[0])
			continue
		}
		unused[f[1]] = false
	}
	for a, is := range unused {
		if is {
			t.Errorf("no finding is %s: remove it", a)
		}
	}
}
