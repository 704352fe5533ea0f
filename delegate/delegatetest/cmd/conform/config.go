package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// object returns the configuration of the plugin, as an object. Of a network
// configuration list it is the member of the plugin's type, with the name of the
// list.
func (o *options) object() (json.RawMessage, error) {
	typ := filepath.Base(o.path)
	if o.conf == "" {
		return json.Marshal(map[string]string{"type": typ})
	}
	text, err := os.ReadFile(o.conf)
	if err != nil {
		return nil, err
	}
	var network struct {
		Name    json.RawMessage
		Plugins []map[string]json.RawMessage
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, fmt.Errorf("%s is not a JSON object: %v", o.conf, err) //nolint:errorlint // may be nil
	}
	if object["plugins"] == nil || object["type"] != nil {
		return text, nil
	}
	if err := json.Unmarshal(text, &network); err != nil {
		return nil, fmt.Errorf("%s: %w", o.conf, err)
	}
	for _, plugin := range network.Plugins {
		if string(plugin["type"]) != fmt.Sprintf("%q", typ) {
			continue
		}
		if network.Name != nil {
			plugin["name"] = network.Name
		}
		return json.Marshal(plugin)
	}
	return nil, fmt.Errorf("%s is a network configuration list without a plugin of type %q", o.conf, typ)
}

// types returns the types of the delegates in the configuration text: each
// "type" below the plugin's own, but not those inside a delegate.
func types(text json.RawMessage) []string {
	found := make(map[string]bool)
	var look func(v any)
	look = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				look(e)
			}
		case map[string]any:
			if typ, ok := v["type"].(string); ok && typ != "" {
				found[typ] = true
				return
			}
			for _, e := range v {
				look(e)
			}
		}
	}
	var object map[string]any
	if json.Unmarshal(text, &object) == nil {
		delete(object, "prevResult")
		for _, v := range object {
			look(v)
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// results returns the fakes that -fake describes.
func (o *options) results() (map[string]delegatetest.Plugin, error) {
	fakes := make(map[string]delegatetest.Plugin)
	for typ, file := range o.fakes.values() {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var result cnitypes.Result
		if result, err = create.CreateFromBytes(text); err != nil {
			return nil, fmt.Errorf("%s is not a CNI result: %w", file, err)
		}
		fakes[typ] = delegatetest.Result(result)
	}
	return fakes, nil
}

// A file is one that is written before each check.
type file struct {
	text string
	mode fs.FileMode
}

// load reads the files of -files, by path.
func (o *options) load() (map[string]file, error) {
	files := make(map[string]file)
	if o.files == "" {
		return files, nil
	}
	return files, filepath.WalkDir(o.files, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(o.files, path)
		files[name] = file{string(text), info.Mode().Perm()}
		return err
	})
}

func (f file) write(dir, name string) error {
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(expand(f.text, dir)), f.mode)
}

// expand replaces {dir} in text.
func expand(text, dir string) string { return strings.ReplaceAll(text, "{dir}", dir) }
