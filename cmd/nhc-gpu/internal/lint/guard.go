package lint

import (
	"cmp"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// lintExempt judges the exempt codes and checks of [guard].
func lintExempt(l *linter, path string, list []string) {
	for _, e := range list {
		if !beginsCode(e) && !slices.ContainsFunc(checks.Names(), func(name string) bool { return strings.HasPrefix(name, e) }) {
			warnOfTable(l, path, e, "no code and no check begins with "+e, "the guard exempts nothing by it", "a code of /usr/share/doc/nhc-gpu/docs/reference/findings.md, or a check")
		}
	}
}

// lintRemedies judges the codes, the platforms and the lines of [remedy.NAME]. own are the platforms of
// profiles.toml.
func lintRemedies(l *linter, path string, rows []conf.Remedy, own []string) {
	for _, row := range rows {
		for _, name := range row.Platforms {
			lintPlatform(l, path, row.Name, name, own)
		}
		for _, code := range row.Codes {
			if !checks.KnownCode(strings.TrimSuffix(code, ".")) {
				warnOfTable(l, path, code, "no code begins with "+code, "remedy."+row.Name+" is never carried out for it", "a code of /usr/share/doc/nhc-gpu/docs/reference/findings.md")
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

// lintPlatform judges the name of a platform in [remedy.NAME]: a run compares it letter by letter.
func lintPlatform(l *linter, path, remedy, name string, own []string) {
	shipped, err := conf.ShippedPlatforms()
	known := slices.Clone(own)
	for i := range shipped {
		known = append(known, shipped[i].Name)
	}
	if err == nil && !slices.Contains(known, name) {
		warnOfTable(l, path, name, "no platform is named "+name, "remedy."+remedy+" is never carried out for it",
			cmp.Or(spell.Nearest(name, known), "a name that nhc-gpu platforms prints"))
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
