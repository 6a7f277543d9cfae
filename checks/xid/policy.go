package xid

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"

	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"maps"
	"regexp"
	"slices"

	"github.com/BurntSushi/toml"
)

// xidRow is one row of xid.toml or sxid.toml.
type xidRow struct {
	Code      int               `toml:"code"`
	Name      string            `toml:"name"`
	Class     checks.XidClass   `toml:"class"`
	Says      string            `toml:"says"`
	Means     string            `toml:"means"`
	Remedy    checks.Remedy     `toml:"remedy"`
	Source    string            `toml:"source"`
	Why       string            `toml:"why"`
	State     string            `toml:"state"`  // remap, bank, sram, links or mig
	Repeat    *checks.Repeat    `toml:"repeat"` // so many make another class
	Again     []checks.XidClass `toml:"again"`  // after a reset or reboot
	Same      string            `toml:"same"`   // link: what counts for Again
	Clears    int               `toml:"clears"`
	Qualifies int               `toml:"qualifies"`
	Nonfatal  checks.XidClass   `toml:"nonfatal"` // of an SXid
	Victim    bool              `toml:"victim"`   // the application only suffers from it
	Cure      string            `toml:"cure"`     // what ends it, if that is more than its class says

	unknown  bool   // no table has it
	override string // what the site has made of it, "" if nothing
}

//go:embed xid.toml
var xidTOML string

//go:embed sxid.toml
var sxidTOML string

// xidRowOf finds the row of a code. Each row is a line of its own, so that a
// node with one event need not read six hundred of them.
func xidRowOf(k checks.XidKey) (r xidRow, ok bool) {
	text := xidTOML
	if k.Switch {
		text = sxidTOML
	}
	_, rest, ok := strings.Cut(text, fmt.Sprintf("\n\t{code = %d,", k.Code))
	if !ok {
		return r, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	var table struct {
		Row xidRow `toml:"row"`
	}
	if _, err := toml.Decode(fmt.Sprintf("row = {code = %d,%s", k.Code, strings.TrimSuffix(line, ",")), &table); err != nil {
		panic(fmt.Sprintf("checks: row of %s: %v", k, err))
	}
	if table.Row.Remedy == "none" {
		table.Row.Remedy = checks.NoRemedy
	}
	return table.Row, true
}

// xidPolicy is what is to be made of each code: the tables, and what a site
// has changed in them.
type xidPolicy struct {
	file     string // of the site's changes; "" if there are none
	rows     map[checks.XidKey]xidOverride
	severity map[checks.XidClass]checks.Severity
}

// xidOverride is one row of a site's file.
type xidOverride struct {
	Code  int             `toml:"code"`
	Class checks.XidClass `toml:"class"`
	Why   string          `toml:"why"`
}

// row is what is known of a code, with the site's word. An unknown code is to
// be watched, loudly, and drains nobody.
func (p *xidPolicy) row(k checks.XidKey) xidRow {
	r, ok := xidRowOf(k)
	if !ok {
		r = xidRow{
			Code: k.Code, Name: "unknown", Class: checks.XidWatch, Says: "unknown", Means: "unknown to this version of nhc-gpu",
			Source: "none", unknown: true,
		}
	}
	o, ok := p.rows[k]
	if !ok {
		return r
	}
	r.override = fmt.Sprintf("%s: class %s in place of %s", p.file, o.Class, r.Class)
	if o.Why != "" {
		r.override += ", " + o.Why
	}
	// The site has judged this code: nothing else changes its class.
	r.Class, r.Nonfatal, r.Again, r.Repeat, r.State, r.Cure = o.Class, o.Class, nil, nil, "", ""
	r.Remedy, r.unknown = classRemedy(o.Class, r.Remedy), false
	return r
}

// classRemedy is what cures an event whose class is not that of its row.
func classRemedy(c checks.XidClass, of checks.Remedy) checks.Remedy {
	switch c {
	case checks.XidReset:
		if of == checks.CheckCable || of == checks.CheckFabric {
			return of
		}
		return checks.ResetGPU
	case checks.XidReboot:
		return checks.RebootNode
	case checks.XidHold:
		return checks.ReseatOrRMA
	case checks.XidApp:
		return checks.RestartApp
	case checks.XidConfig:
		return checks.FixConfig
	case checks.XidDiag:
		return checks.NoRemedy
	}
	return of
}

// severityOf is how bad a finding of the class is.
func (p *xidPolicy) severityOf(c checks.XidClass) checks.Severity {
	if s, ok := p.severity[c]; ok {
		return s
	}
	switch {
	case c.Drains():
		return checks.Fail
	case c == checks.XidIgnore:
		return checks.OK
	}
	return checks.Warn
}

// xidPolicyFile is where a site changes the policy, unless XID_POLICY names
// another file.
const xidPolicyFile = "/etc/nhc/xid.toml"

// readXidPolicy reads the site's changes. Without a usable file the tables stand
// as they are, and the error says why.
func readXidPolicy(env *checks.Env) (*xidPolicy, error) {
	path := env.Lookup("XID_POLICY")
	if path == "" {
		path = xidPolicyFile
	}
	env.At("read %s", path)
	data, err := probe.ReadTrusted(env.Host, path)
	if errors.Is(err, fs.ErrNotExist) && path == xidPolicyFile {
		return &xidPolicy{}, nil
	}
	if err != nil {
		return &xidPolicy{}, err
	}
	p, err := parseXidPolicy(path, string(data))
	if err != nil {
		first, _, more := strings.Cut(err.Error(), "\n")
		if more {
			first += " (nhc-gpu lint tells all)"
		}
		return &xidPolicy{}, errors.New(first)
	}
	return p, nil
}

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
			r.Wrong(r.Line(`\s*\[\s*class\s*\.\s*"?`+regexp.QuoteMeta(string(class)), 0), "class.%s: severity %q, want ok, warn or fail, for one of %s", class, word, xidClassNames())
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

// xidClassNames lists the classes that a site can give.
func xidClassNames() string {
	var names []string
	for _, c := range checks.XidClasses[:checks.XidDecode.Rank()] {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
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
			r.Wrong(line, "%s: class %q, want one of %s", key, o.Class, xidClassNames())
		default:
			r.p.rows[key] = o
		}
	}
}
