INSERT INTO sandbox (id, driver, name, adopted, head, created, labels, spec)
VALUES (:id, :driver, :name, :adopted, :head, :created, :labels, :spec)
