package lint

import (
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// lintExempt judges the exempt codes and checks of [guard].
func lintExempt(l *linter, path string, list []string) {
	for _, e := range list {
		if !beginsCode(e) && !slices.ContainsFunc(checks.Names(), func(name string) bool { return strings.HasPrefix(name, e) }) {
			warnOfTable(l, path, e, "no code and no check begins with "+e, "the guard exempts nothing by it", "a code of docs/reference/findings.md, or a check")
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
