package runtimes

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
)

// pauseImage is the name of the image of every pod.
const pauseImage = "localhost/pause:1"

// object is a JSON object.
type object = map[string]any

// writeImage writes an OCI image of a static program to the file to.
func writeImage(program, to string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := archive(file{"pause", text, 0o755})
	if err != nil {
		return err
	}
	digest := func(data []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(data)) }
	var files []file
	blob := func(kind string, data []byte) object {
		files = append(files, file{"blobs/sha256/" + digest(data)[len("sha256:"):], data, 0o644})
		return object{"mediaType": "application/vnd.oci.image." + kind, "digest": digest(data), "size": len(data)}
	}
	encode := func(v any) (data []byte) {
		if err == nil {
			data, err = json.Marshal(v)
		}
		return data
	}
	config := blob("config.v1+json", encode(object{
		"os": "linux", "architecture": runtime.GOARCH, "config": object{"Entrypoint": []string{"/pause"}},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	}))
	manifest := blob("manifest.v1+json", encode(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []object{blob("layer.v1.tar", layer)},
	}))
	manifest["annotations"] = object{"io.containerd.image.name": pauseImage}
	files = append(files,
		file{"oci-layout", encode(object{"imageLayoutVersion": "1.0.0"}), 0o644},
		file{"index.json", encode(object{"schemaVersion": 2, "manifests": []object{manifest}}), 0o644})
	if err != nil {
		return err
	}
	image, err := archive(files...)
	if err != nil {
		return err
	}
	return os.WriteFile(to, image, 0o600)
}

// A file is a file in an archive.
type file struct {
	name string
	data []byte
	mode int64
}

func archive(files ...file) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data))}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
