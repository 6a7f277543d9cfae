// Command sbom prints what a Go program consists of, in CycloneDX's format: the modules that the
// linker recorded in the program, and not those of a source tree. The same program makes the same
// bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"os"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom PROGRAM VERSION")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(path, version string) error {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the program: %w", err)
	}
	sum := sha256.Sum256(program)
	main := cdx.Component{
		BOMRef: purl(info.Main.Path, "v"+version), PackageURL: purl(info.Main.Path, "v"+version),
		Type: cdx.ComponentTypeApplication, Name: info.Main.Path, Version: version,
		Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sum)}},
		Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
	}
	var settings []cdx.Property
	for _, s := range info.Settings {
		settings = append(settings, cdx.Property{Name: "go:" + s.Key, Value: s.Value})
	}
	main.Properties = &settings

	parts := []cdx.Component{library("std", info.GoVersion)}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		parts = append(parts, library(m.Path, m.Version))
	}
	refs := make([]string, 0, len(parts))
	for _, p := range parts {
		refs = append(refs, p.BOMRef)
	}

	bom := cdx.NewBOM()
	bom.SerialNumber = uuid(sum[:])
	bom.Metadata = &cdx.Metadata{Component: &main}
	bom.Components = &parts
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	if err := cdx.NewBOMEncoder(os.Stdout, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func library(path, version string) cdx.Component {
	version = strings.TrimPrefix(version, "go")
	return cdx.Component{BOMRef: purl(path, version), PackageURL: purl(path, version), Type: cdx.ComponentTypeLibrary, Name: path, Version: version}
}

func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

// uuid makes a random-looking UUID (version 4) from a checksum.
func uuid(sum []byte) string {
	b := append([]byte{}, sum[:16]...)
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
