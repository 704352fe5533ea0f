package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
	var object map[string]json.RawMessage
	if err := json.Unmarshal(text, &object); err != nil || object == nil {
		return nil, fmt.Errorf("%s is not a JSON object: %v", o.conf, err) //nolint:errorlint // may be nil
	}
	if object["plugins"] == nil || object["type"] != nil {
		return text, nil
	}
	var plugins []map[string]json.RawMessage
	if err := json.Unmarshal(object["plugins"], &plugins); err != nil {
		return nil, fmt.Errorf("%s: plugins: %w", o.conf, err)
	}
	for _, plugin := range plugins {
		if string(plugin["type"]) == fmt.Sprintf("%q", typ) {
			if name, ok := object["name"]; ok {
				plugin["name"] = name
			}
			return json.Marshal(plugin)
		}
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
	for typ, file := range o.fakes {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		result, err := create.CreateFromBytes(text)
		if err != nil {
			return nil, fmt.Errorf("%s is not a CNI result: %w", file, err)
		}
		fakes[typ] = delegatetest.Result(result)
	}
	return fakes, nil
}

// copyFiles copies the files of -files to dir, with {dir} replaced in them.
func (o *options) copyFiles(dir string) error {
	if o.files == "" {
		return nil
	}
	return filepath.WalkDir(o.files, func(path string, e fs.DirEntry, err error) error {
		name, relErr := filepath.Rel(o.files, path)
		if err = errors.Join(err, relErr); err != nil {
			return err
		}
		to := filepath.Join(dir, name)
		if e.IsDir() {
			return os.MkdirAll(to, 0o700)
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(to, []byte(expand(string(text), dir)), info.Mode().Perm())
	})
}

// expand replaces {dir} in text.
func expand(text, dir string) string { return strings.ReplaceAll(text, "{dir}", dir) }
