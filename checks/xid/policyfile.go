package xid

import (
	"errors"
	"maps"
	"regexp"
	"slices"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// PolicyErrors is what is wrong with a site's policy for Xids, all of it, each
// with its line; nil if nothing is.
func PolicyErrors(path string, text []byte) error {
	_, err := parseXidPolicy(path, string(text))
	return err
}

// xidPolicyText is a site's policy for Xids as it is written.
type xidPolicyText struct {
	Xid   []xidOverride `toml:"xid"`
	SXid  []xidOverride `toml:"sxid"`
	Class map[checks.XidClass]struct {
		Severity string `toml:"severity"`
	} `toml:"class"`
}

// parseXidPolicy reads a site's file: [[xid]] and [[sxid]] give a code another
// class, [class.WATCH] gives a class another severity.
func parseXidPolicy(path, text string) (*xidPolicy, error) {
	var file xidPolicyText
	md, err := toml.Decode(text, &file)
	if err != nil {
		return nil, checks.TOMLPlace(path, err)
	}
	r := xidPolicyReader{SiteFile: checks.SiteFile{Path: path, Text: text}, p: &xidPolicy{file: path, rows: map[checks.XidKey]xidOverride{}, severity: map[checks.XidClass]checks.Severity{}}}
	for _, key := range md.Undecoded() {
		r.Wrong(r.Line(`\s*`+regexp.QuoteMeta(key[len(key)-1])+`\s*=|\s*\[+\s*`+regexp.QuoteMeta(key.String()), 0), "unknown key %s", key)
	}
	r.rows("xid", false, file.Xid)
	r.rows("sxid", true, file.SXid)
	for _, class := range slices.Sorted(maps.Keys(file.Class)) {
		word := file.Class[class].Severity
		severity, ok := map[string]checks.Severity{"ok": checks.OK, "warn": checks.Warn, "fail": checks.Fail}[word]
		if class.Rank() < 0 || class.Rank() >= checks.XidDecode.Rank() || !ok {
			r.Wrong(r.Line(`\s*\[\s*class\s*\.\s*"?`+regexp.QuoteMeta(string(class)), 0), "class.%s: severity %q, want ok, warn or fail, for one of %v", class, word, checks.XidClasses[:checks.XidDecode.Rank()])
			continue
		}
		r.p.severity[class] = severity
	}
	if len(r.Errs) > 0 {
		return nil, errors.Join(r.Errs...)
	}
	return r.p, nil
}

// xidPolicyReader collects what is wrong with a policy.
type xidPolicyReader struct {
	checks.SiteFile

	p *xidPolicy
}

// rows takes [[xid]] or [[sxid]] tables.
func (r *xidPolicyReader) rows(table string, isSwitch bool, list []xidOverride) {
	for i, o := range list {
		key, line := checks.XidKey{Switch: isSwitch, Code: o.Code}, r.Line(`\s*\[\[\s*`+table+`\s*\]\]`, i)
		_, twice := r.p.rows[key]
		switch {
		case twice:
			r.Wrong(line, "%s: given twice", key)
		case o.Class.Rank() < 0 || o.Class.Rank() >= checks.XidDecode.Rank():
			r.Wrong(line, "%s: class %q, want one of %v", key, o.Class, checks.XidClasses[:checks.XidDecode.Rank()])
		default:
			r.p.rows[key] = o
		}
	}
}
