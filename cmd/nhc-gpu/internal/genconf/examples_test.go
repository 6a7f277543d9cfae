package genconf

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	_ "github.com/nhc-gpu/nhc-gpu/checks/all"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session/node"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// TestExamples: conf/examples has what genconf writes for each platform, and the files of
// prolog, epilog and active tests of one. NHC_GPU_WRITE=examples writes them.
func TestExamples(t *testing.T) {
	t.Parallel()
	const dir = "../../../../conf/examples"
	list, err := conf.ShippedPlatforms()
	if err != nil || len(list) < 14 {
		t.Fatalf("%d platforms, %v", len(list), err)
	}
	want := []string{"nhc.conf"} // written by hand
	for i := range list {
		to := targetOf(node.PlatformFigures(&list[i]))
		files := to.files(to.expect())
		if list[i].Name != "HGX H100" {
			files = files[:1]
		}
		for _, f := range files {
			name, text := "nhc"+f.suffix+".conf", f.sheet.render("*")
			if f.suffix == "" {
				name = slug(list[i].Name) + ".conf"
			}
			want = append(want, name)
			lines, doubts, err := conf.Parse(name, []byte(text))
			if err != nil || len(doubts) > 0 || len(lines) < 5 {
				t.Errorf("%s: %d lines, %v, %v", name, len(lines), doubts, err)
			}
			for _, s := range plan.Build(lines, plan.Options{}).Steps {
				if s.Kind != plan.Native || s.Usage != nil {
					t.Errorf("%s: %s is no line of a check: %s", name, s.Text, s.Why)
				}
			}
			path := filepath.Join(dir, name)
			if os.Getenv("NHC_GPU_WRITE") == "examples" {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(text, string(data)); diff != "" {
				t.Errorf("%s: NHC_GPU_WRITE=examples go test ./cmd/nhc-gpu/internal/genconf writes it (-want +got):\n%s", name, diff)
			}
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(want, e.Name()) {
			t.Errorf("%s/%s is of no platform", dir, e.Name())
		}
	}
}

var notWord = regexp.MustCompile(`[^a-z0-9]+`)

// slug returns the name of a platform as a file has it: hgx-h100.
func slug(name string) string { return notWord.ReplaceAllString(strings.ToLower(name), "-") }
