// Chart generates a Helm chart from multinetd's Kustomize base and its components:
//
//	chart MANIFESTS IMAGE DIRECTORY
//
// A template is an object as Kustomize builds it from the directory MANIFESTS. The lines that a
// component adds or removes depend on the value components, which lists components as a
// kustomization.yaml does. The version of the chart is the tag of the image.
package main

import (
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: chart MANIFESTS IMAGE DIRECTORY")
		os.Exit(2)
	}
	if err := generate(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// chart has the files that are not generated.
//
//go:embed chart
var chart embed.FS

// generate writes the chart of the manifests in a directory to another directory.
func generate(manifests, image, dir string) error {
	m, err := load(manifests)
	if err != nil {
		return err
	}
	templates, platforms, err := m.templates()
	if err != nil {
		return err
	}
	for name, text := range templates {
		if err := write(filepath.Join(dir, "templates", name+".yaml"), text); err != nil {
			return err
		}
	}
	crd, err := m.files.ReadFile("/base/crd.yaml")
	if err != nil {
		return err
	}
	config, err := m.files.ReadFile("/base/daemon/daemon-config.json")
	if err != nil {
		return err
	}
	_, version, _ := strings.Cut(image, ":v")
	fill := strings.NewReplacer(
		"IMAGE", image, "VERSION", version, "COMPONENTS", list(m.components), "PLATFORMS", list(platforms),
		"CONFIG", strings.ReplaceAll(strings.TrimSpace(string(config)), "\n", "\n  "),
	)
	return errors.Join(
		write(filepath.Join(dir, "crds/crd.yaml"), string(crd)),
		fs.WalkDir(chart, "chart", func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := chart.ReadFile(path)
			if err != nil {
				return err
			}
			return write(filepath.Join(dir, d.Name()), fill.Replace(string(text)))
		}))
}

// list returns a list of YAML and JSON.
func list(names []string) string {
	text, _ := json.Marshal(names) // strings
	return string(text)
}

func write(path, text string) error {
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}
