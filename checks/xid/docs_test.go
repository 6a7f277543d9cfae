package xid

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

// TestXidPage compares docs/reference/xid-classes.md with the tables of codes, or writes it.
func TestXidPage(t *testing.T) {
	t.Parallel()
	const write = "NHC_GPU_WRITE=docs go test ./checks/xid -run XidPage"
	path := checktest.FromRoot(t, "docs/reference/xid-classes.md")
	var tables struct {
		Version  string   `toml:"version"`
		Rows     []xidRow `toml:"xid"`
		Switches []xidRow `toml:"sxid"`
	}
	for _, text := range []string{sxidTOML, xidTOML} { // the version is that of the Xids
		if _, err := toml.Decode(text, &tables); err != nil {
			t.Fatal(err)
		}
	}
	if len(tables.Rows) < 100 || len(tables.Switches) < 50 {
		t.Fatalf("%d Xids, %d SXids", len(tables.Rows), len(tables.Switches))
	}
	var page strings.Builder
	page.WriteString("# Xid codes\n\n[Xids](xid.md) explains the classes. `nhc-gpu xid explain 79` prints all that is known of a code:\nthe source, what raises or lowers its class, and why the class is not NVIDIA's.\n" +
		"\n<!-- " + write + " writes this page. -->\n\nThe tables were last compared with NVIDIA's catalogue on " + tables.Version + ".\nA code that is in no table is WATCH and drains no node.\n")
	for _, part := range []struct {
		title string
		rows  []xidRow
	}{{"Xids of GPUs", tables.Rows}, {"SXids of NVSwitches", tables.Switches}} {
		fmt.Fprintf(&page, "\n## %s\n\n| code | class | meaning | remedy | NVIDIA |\n|---|---|---|---|---|\n", part.title)
		for i := range part.rows {
			r := &part.rows[i]
			if r.Class == checks.XidWatch && r.Means == "not used by current drivers" {
				continue
			}
			fmt.Fprintf(&page, "| %d | %s | %s | %s | %s |\n", r.Code, r.Class, strings.ReplaceAll(r.Means, "|", "\\|"), r.Remedy, strings.ReplaceAll(r.Says, "|", "\\|"))
		}
	}
	page.WriteString("\nXids that current drivers do not use are WATCH and are not listed.\n")
	if os.Getenv(checktest.WriteSetting) == "docs" {
		if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(got)); diff != "" {
		t.Errorf("%s is not what the tables say; %s writes it (-want +got):\n%s", path, write, diff)
	}
}
