"""What is recorded, and what follows from it: records, their fold, stores, snapshots, archives."""
