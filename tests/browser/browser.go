// Package browser looks at pages in a real browser.
package browser

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/tests/need"
)

// Find returns the program of a browser without a screen, and skips the test if there is none.
func Find(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium-headless-shell", "/usr/lib/chromium/chromium-headless-shell", "chromium"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	need.Skip(t, "no chromium-headless-shell: tests/install-deps.sh installs it")
	return ""
}

// measure loads the page in a frame, and writes what it measures into its own document.
const measure = `<!DOCTYPE html><iframe id="f" src="%s" style="border:0;width:%dpx;height:800px"></iframe>
<script>onload=()=>{const d=f.contentDocument,e=d.documentElement,s=getComputedStyle,c=s(d.body),m=d.querySelector("td.f");
document.title=JSON.stringify({scroll:e.scrollWidth,width:f.clientWidth,rows:d.querySelectorAll("tr.node").length,color:c.color,background:c.backgroundColor,
bad:m?s(m).backgroundColor:"",fills:[".h0",".h1",".h2",".h3",".h4",".hx"].map(x=>d.querySelector(".map "+x)).filter(x=>x).map(x=>s(x).fill),scripts:d.scripts.length,height:e.scrollHeight})}</script>`

// Measured is what a browser makes of a page.
type Measured struct {
	Scroll, Width, Rows, Scripts, Height int // pixels; numbers
	Color, Background, Bad               string
	Fills                                []string // of the cells of a map
}

var title = regexp.MustCompile(`<title>(.*?)</title>`)

// Look returns what a browser makes of a page, at a width in pixels. A message in the console fails the
// test.
func Look(t *testing.T, browser, page string, width int, dark bool) (m Measured) {
	t.Helper()
	frame := fmt.Sprintf("%s-frame-%d-%t.html", strings.TrimSuffix(page, ".html"), width, dark)
	if err := os.WriteFile(frame, fmt.Appendf(nil, measure, filepath.Base(page), width), 0o644); err != nil {
		t.Fatal(err)
	}
	argv := []string{"--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--enable-logging=stderr", "--v=0", "--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,900", width+40)}
	if dark {
		argv = append(argv, "--blink-settings=preferredColorScheme=0")
	}
	cmd := exec.Command(browser, append(argv, "--dump-dom", "file://"+frame)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, errs.String())
	}
	if strings.Contains(errs.String(), "CONSOLE") {
		t.Errorf("the console has messages:\n%s", errs.String())
	}
	found := title.FindStringSubmatch(out.String())
	if found == nil || json.Unmarshal([]byte(html.UnescapeString(found[1])), &m) != nil {
		t.Fatalf("no measures in\n%.500s\n%.500s", out.String(), errs.String())
	}
	return m
}
