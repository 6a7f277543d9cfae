package lint

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
)

// lintExempt judges the exempt codes and checks of [guard].
func lintExempt(l *linter, path string, list []string) {
	for _, e := range list {
		if !beginsCode(e) && !slices.ContainsFunc(checks.Names(), func(name string) bool { return strings.HasPrefix(name, e) }) {
			warnOfTable(l, path, e, "no code and no check begins with "+e, "the guard exempts nothing by it", "a code of docs/reference/findings.md, or a check")
		}
	}
}

// lintRemedies judges the codes and the lines of [remedy.NAME].
func lintRemedies(l *linter, path string, rows []conf.Remedy) {
	for _, row := range rows {
		for _, code := range row.Codes {
			if !beginsCode(code) {
				warnOfTable(l, path, code, "no code begins with "+code, "remedy."+row.Name+" is never carried out for it", "a code of docs/reference/findings.md")
			}
		}
		for _, line := range row.Verify {
			name, _, _ := strings.Cut(line, " ")
			if _, ok := checks.Lookup(name); !ok {
				warnOfTable(l, path, line, "there is no check "+name, "after remedy."+row.Name+" the line fails, and the node stays drained", "a line of nhc.conf, such as \"check_gpu_gemm\"")
			}
		}
	}
}

// beginsCode reports whether a code begins with a text.
func beginsCode(text string) bool {
	for code := range checks.CodeRows().Words {
		family, isFamily := strings.CutSuffix(code, "*")
		if strings.HasPrefix(family, text) || isFamily && strings.HasPrefix(text, family) {
			return true
		}
	}
	return false
}
