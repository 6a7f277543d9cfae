package checks

import (
	"errors"
	"maps"
	"regexp"
	"slices"

	"github.com/BurntSushi/toml"
)

// XidPolicyErrors is what is wrong with a site's policy for Xids, all of it, each
// with its line; nil if nothing is.
func XidPolicyErrors(path string, text []byte) error {
	_, err := parseXidPolicy(path, string(text))
	return err
}

// xidPolicyText is a site's policy for Xids as it is written.
type xidPolicyText struct {
	Xid   []xidOverride `toml:"xid"`
	SXid  []xidOverride `toml:"sxid"`
	Class map[XidClass]struct {
		Severity string `toml:"severity"`
	} `toml:"class"`
}

// parseXidPolicy reads a site's file: [[xid]] and [[sxid]] give a code another
// class, [class.WATCH] gives a class another severity.
func parseXidPolicy(path, text string) (*xidPolicy, error) {
	var file xidPolicyText
	md, err := toml.Decode(text, &file)
	if err != nil {
		return nil, tomlPlace(path, err)
	}
	r := xidPolicyReader{siteFile: siteFile{path: path, text: text}, p: &xidPolicy{file: path, rows: map[xidKey]xidOverride{}, severity: map[XidClass]Severity{}}}
	for _, key := range md.Undecoded() {
		r.wrong(r.line(`\s*`+regexp.QuoteMeta(key[len(key)-1])+`\s*=|\s*\[+\s*`+regexp.QuoteMeta(key.String()), 0), "unknown key %s", key)
	}
	r.rows("xid", false, file.Xid)
	r.rows("sxid", true, file.SXid)
	for _, class := range slices.Sorted(maps.Keys(file.Class)) {
		word := file.Class[class].Severity
		severity, ok := map[string]Severity{"ok": OK, "warn": Warn, "fail": Fail}[word]
		if class.rank() < 0 || class.rank() >= XidDecode.rank() || !ok {
			r.wrong(r.line(`\s*\[\s*class\s*\.\s*"?`+regexp.QuoteMeta(string(class)), 0), "class.%s: severity %q, want ok, warn or fail, for one of %v", class, word, xidClasses[:XidDecode.rank()])
			continue
		}
		r.p.severity[class] = severity
	}
	if len(r.errs) > 0 {
		return nil, errors.Join(r.errs...)
	}
	return r.p, nil
}

// xidPolicyReader collects what is wrong with a policy.
type xidPolicyReader struct {
	siteFile

	p *xidPolicy
}

// rows takes [[xid]] or [[sxid]] tables.
func (r *xidPolicyReader) rows(table string, isSwitch bool, list []xidOverride) {
	for i, o := range list {
		key, line := xidKey{Switch: isSwitch, Code: o.Code}, r.line(`\s*\[\[\s*`+table+`\s*\]\]`, i)
		_, twice := r.p.rows[key]
		switch {
		case twice:
			r.wrong(line, "%s: given twice", key)
		case o.Class.rank() < 0 || o.Class.rank() >= XidDecode.rank():
			r.wrong(line, "%s: class %q, want one of %v", key, o.Class, xidClasses[:XidDecode.rank()])
		default:
			r.p.rows[key] = o
		}
	}
}
