package main

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Manifests are a Kustomize base and the components in its directories.
type manifests struct {
	files      filesys.FileSystem // has the base in /base
	components []string           // directories, in order
}

// load reads the manifests in a directory.
func load(dir string) (*manifests, error) {
	m := &manifests{files: filesys.MakeFsInMemory()}
	base := os.DirFS(dir)
	return m, fs.WalkDir(base, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := fs.ReadFile(base, name)
		if err != nil {
			return err
		}
		if path.Base(name) == "kustomization.yaml" && bytes.Contains(data, []byte("\nkind: Component\n")) {
			m.components = append(m.components, path.Dir(name))
		}
		return m.files.WriteFile("/base/"+name, data)
	})
}

// image and config match what a release has in its values.
var (
	image  = regexp.MustCompile(`\bimage: .+`)
	config = regexp.MustCompile(`(?s)\bdaemon-config.json: .+?\n(\S)`)
)

// build returns the text of the objects of the base with components, by kind and name. Namespace,
// images and configuration are the release's. As with Kustomize, the ConfigMap has another name
// for each content.
func (m *manifests) build(components ...string) (map[string]string, error) {
	k := []byte("namespace: '{{ .Release.Namespace }}'\nresources: [../base]\ncomponents:\n")
	for _, c := range components {
		k = fmt.Appendf(k, "  - ../base/%s\n", c)
	}
	if err := m.files.WriteFile("/built/kustomization.yaml", k); err != nil {
		return nil, err
	}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(m.files, "/built")
	if err != nil {
		return nil, fmt.Errorf("components %q: %w", components, err)
	}
	objects, hash := make(map[string]string), ""
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			return nil, err
		}
		name := r.GetName()
		if r.GetKind() == "ConfigMap" {
			hash, name = name, "multinetd"
			text = config.ReplaceAll(text, []byte("daemon-config.json: {{ toPrettyJson .Values.config | quote }}\n$1"))
		}
		objects[strings.ToLower(r.GetKind())+"-"+name] = string(image.ReplaceAll(text, []byte("image: {{ .Values.image }}")))
	}
	for name, text := range objects {
		objects[name] = strings.ReplaceAll(text, hash, "multinetd-{{ toJson .Values.config | sha256sum | trunc 10 }}")
	}
	return objects, nil
}

// templates returns the text of the templates. Platforms are the components that replace the same
// line, so that only one of them can be used.
func (m *manifests) templates() (templates map[string]string, platforms []string, err error) {
	base, err := m.build()
	if err != nil {
		return nil, nil, err
	}
	templates = maps.Clone(base)
	with := make(map[string]map[string]string)
	for _, c := range m.components {
		if with[c], err = m.build(c); err != nil {
			return nil, nil, err
		}
		maps.Copy(templates, with[c])
	}
	for name := range templates {
		lines := strings.SplitAfter(base[name], "\n")
		inserted := make([]string, len(lines))
		removed := make([][]string, len(lines))
		for _, c := range m.components {
			inserts, removes := diff(lines, strings.SplitAfter(with[c][name], "\n"))
			for i := range lines {
				if inserts[i] != "" {
					inserted[i] += "{{- if" + used(c) + " }}\n" + inserts[i] + "{{- end }}\n"
				}
				if removes[i] {
					removed[i] = append(removed[i], c)
				}
			}
		}
		var text strings.Builder
		for i, line := range lines {
			if by := removed[i]; len(by) > 0 {
				line = "{{- if not (or" + used(by...) + ") }}\n" + line + "{{- end }}\n"
				if len(by) > 1 {
					platforms = append(platforms, by...)
				}
			}
			text.WriteString(inserted[i] + line)
		}
		templates[name] = text.String()
	}
	slices.Sort(platforms)
	return templates, slices.Compact(platforms), nil
}

// used returns conditions of a template: that components are used.
func used(components ...string) (conditions string) {
	for _, c := range components {
		conditions += fmt.Sprintf(" (has %q .Values.components)", c)
	}
	return conditions
}
