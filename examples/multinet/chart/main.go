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
	"errors"
	"fmt"
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
func generate(dir, image, out string) error {
	m, err := load(dir)
	if err != nil {
		return err
	}
	files, err := m.templates()
	if err != nil {
		return err
	}
	crd, crdErr := os.ReadFile(filepath.Join(dir, "crd.yaml"))
	config, configErr := os.ReadFile(filepath.Join(dir, "daemon/daemon-config.json"))
	if err := errors.Join(crdErr, configErr); err != nil {
		return err
	}
	files["crds/crd.yaml"] = string(crd)
	_, version, _ := strings.Cut(image, ":v")
	fill := strings.NewReplacer("IMAGE", image, "VERSION", version, "COMPONENTS", `"`+strings.Join(m.components, `", "`)+`"`,
		"CONFIG", strings.ReplaceAll(strings.TrimSpace(string(config)), "\n", "\n  "))
	for _, name := range []string{"Chart.yaml", "values.yaml", "values.schema.json"} {
		text, err := chart.ReadFile("chart/" + name)
		if err != nil {
			return err
		}
		files[name] = fill.Replace(string(text))
	}
	for name, text := range files {
		path := filepath.Join(out, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			return err
		}
	}
	return nil
}
